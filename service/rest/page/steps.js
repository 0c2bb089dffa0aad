import { lineChart } from "./chart.js";
import { button, element, scroller, select, svg } from "./element.js";
import { ROLES } from "./heads.js";
import { bdi, isolated, ordinal, unitText } from "./naming.js";
import { formatCount, formatNumber } from "./number.js";
import { bar, cosine, dot, norm, peak, scaled, softmax, strip } from "./vector.js";

/**
 * The steps from a text to the next vector of one of its tokens. Symbols are those of "Attention Is All You Need".
 *
 * @typedef {{id: number, text: string, start: number, end: number, segment: number, special: boolean}} Token
 * @typedef {Record<string, any>} Outputs  `layer_outputs` of /v1/attend for the token, decoded
 * @typedef {object} Scene
 * @property {any} model
 * @property {Token[]} tokens
 * @property {number} row the followed token
 * @property {number} layer from 1
 * @property {number} head from 0
 * @property {Outputs} outputs
 * @property {string[]} roles the name of what each head does, or ""
 * @property {{static: number[][], input: number[][]} | null} embeddings of the token and of that in the other sentence
 * @property {number[][][] | null} positions of all tokens of both sentences: vectors of a table, or angles of rotations
 * @property {string | null} other the same token in the second sentence, or null without one
 * @property {number} otherRow its place, or -1
 * @property {number} pieces how many tokens the word of the token has
 * @property {boolean} hasSecond whether there is a second sentence
 * @property {boolean} isPair whether the text is a pair
 * @property {number[] | null} similarities to it, by layer
 * @property {{layer: number, predictions: {token: string, probability: number}[]}[] | null} words what the masked-LM head of the
 *   model predicts from the token's vector in each layer, or null without such a head
 * @property {{causal: boolean, unscaled: boolean}} switches
 * @property {(name: "causal" | "unscaled", value: boolean) => void} onSwitch
 * @property {(name: string, text?: string) => Node} term
 * @property {{layer: number, head: number, matrix: number[][]}[]} maps the attention weights of the text in all heads
 * @property {number} target the token that the search for heads looks for
 * @property {(place: number) => void} onTarget
 * @property {(place: {layer?: number, head?: number, step?: number}) => void} onPlace
 *
 * @typedef {(string | Node)[]} Text
 * @typedef {{title: string, draw: (scene: Scene) => {say: Text, formulas: string[], symbols: string, figure: (Node | string)[], why: Text}}} Step
 */

const MOST_ROWS = 32;
const CHART_WIDTH = 640;
const IDENTICAL = 0.9995; // similarity from which two vectors are the same, except for rounding
const FOUND_HEADS = 5;
const SELECTIVE = 2; // times the mean of the other words, from which a head selects a word for the token
const UNDERFLOW = 80; // difference of scores from which a weight can be 0 in float32
const SINK = 0.5; // weight on special tokens from which a note explains it

/** @type {Step[]} */
export const STEPS = [
  {
    title: "The text becomes tokens",
    draw: ({ model, tokens, row, pieces, term }) => ({
      say: ["The tokenizer splits the text into ", String(tokens.length), " ", term("token", "tokens"), ", and looks up each in a ",
        term("vocabulary"), " of ", formatCount(model.vocab_size), ". We follow ", named(tokens, row), `, number ${tokens[row].id}`,
        ...(tokens[row].id === model.unknown_token_id ? [". The vocabulary does not contain it: all unknown texts share this number."]
          : pieces > 1 ? [`, one of the ${pieces} pieces of a word that the vocabulary does not contain as a whole.`] : ["."])],
      formulas: [`t = (t_1, \\dots, t_T)`, `T = ${tokens.length}`, `t_{${row + 1}} = ${tokens[row].id}`],
      symbols: "t: the numbers of the tokens. T: how many there are.",
      figure: [element("ol", { className: "tokens", dir: "auto", "aria-label": "Tokens with their numbers" }, ...tokens.map((token, place) =>
        element("li", { className: place === row ? "chosen" : "" }, element("span", { className: token.special ? "special" : "" }, unitText(token)),
          element("span", { className: "number quiet" }, String(token.id)))))],
      why: ["A model computes with numbers. The number of a token selects its entry in the next step. ",
        term("special token", "Special tokens"), " are not in the text. The model was trained with them at these places."],
    }),
  },
  {
    title: "Each token gets its dictionary entry",
    draw: (scene) => {
      const { model, tokens, row, embeddings, other, hasSecond, term } = scene;
      const { positions, segments, embedding_norm: isNormalized } = model.layer_structure;
      const added = positions.includes("table");
      const parts = ["E_{t_i}", ...(added ? ["P_i"] : []), ...(segments ? ["S"] : [])].join(" + ");
      const names = ["this sentence", "second sentence"];
      const vectors = (/** @type {string} */ title, /** @type {number[][]} */ list) => list.map((values, place) =>
        [`${title}, ${names[place]}`, strip(values, { name: `${title} of ${tokens[row].text}, ${names[place]}`, largest: peak(list) })]);
      const [entries, inputs] = embeddings ? [embeddings.static, embeddings.input].map((list) => (list.length > 1 ? cosine(list[0], list[1]) : null)) : [];
      const isSame = inputs !== null && inputs !== undefined && inputs > IDENTICAL;
      return {
        say: ["The ", term("embedding"), " of ", named(tokens, row), ` is row ${tokens[row].id} of a table: ${embeddings?.static[0].length ?? model.hidden_size} numbers, the same in every sentence.`,
          ...(typeof entries === "number" && typeof inputs === "number"
            ? [" The two entries have ", term("cosine similarity", "similarity"), " ", value(entries), ", the two inputs of the first layer ", value(inputs), "."]
            : other === null && hasSecond ? [" The second sentence does not contain this token."] : [])],
        formulas: [`x_i = ${isNormalized ? `\\text{Norm}(${parts})` : parts}`, ...(positions.includes("rotary") ? ["(R_i q_i) \\cdot (R_j k_j) = q_i \\cdot (R_{j - i} k_j)"] : [])],
        symbols: `E: the table of entries${isNormalized ? "" : " (some models multiply them by a number)"}.${added ? " P: a table with a row for each position i." : ""}${segments ? " S: a vector that tells first and second text of a pair apart." : ""}`
          + `${isNormalized ? " Norm: see step 3." : ""} x: the input of layer 1.${positions.includes("rotary") ? " R: the rotation of a position, q and k: see step 4." : ""}`,
        figure: [
          ...(embeddings ? [rows([...vectors("entry", embeddings.static), ...vectors("input", embeddings.input)])] : []),
          ...(scene.positions ? [added ? positionTable(scene, scene.positions) : rotationTable(scene, scene.positions)] : []),
        ],
        why: [added ? "A vector for the " : "The entry does not contain the ", term("position"),
          added ? " is added, because attention by itself does not see the order of words."
            : positions.includes("rotary") ? ". This model adds it later: it rotates queries and keys by an angle that grows with the position, so that their dot product depends on the distance of two tokens."
              : ". This model adds it later: the scores get a value that depends on the distance of two tokens.",
          inputs === null || inputs === undefined ? "" : isSame ? " At the same position, the same word has the same input. The vectors will differ once the layers have mixed in the other words."
            : " The two inputs already differ a little, because the positions differ."],
      };
    },
  },
  {
    title: "The layer reads the vector",
    draw: ({ model, tokens, row, layer, outputs: { input, normalized }, term }) => {
      const { block, norm: kind } = model.layer_structure;
      const isRms = kind === "rms_norm";
      const isUnchanged = input[0].every((component, place) => component === normalized[0][place]);
      return {
        say: isNormalizedAfter(block)
          ? [`Nothing happens here in this model: layer ${layer} reads the vector of `, named(tokens, row), " as it is. The ", term("layer norm", "norm"), " comes at the end of each part, in steps 11 and 12. Other models have it here."]
          : isUnchanged ? [`Layer ${layer} reads the vector of `, named(tokens, row), " as it is. The other layers begin with a ", term("layer norm", "norm"), "."]
            : [`Layer ${layer} begins with a `, term("layer norm", "norm"), ", which rescales the numbers of ", named(tokens, row), ". The ", term("length"), " of the vector changes from ",
              value(norm(input[0])), " to ", value(norm(normalized[0])), "."],
        formulas: [isRms ? "\\text{Norm}(x) = \\frac{x}{\\sqrt{\\text{mean}(x^2)}} \\odot γ" : "\\text{Norm}(x) = \\frac{x - μ}{σ} \\odot γ + β"],
        symbols: `${isRms ? "" : "μ: the mean of the numbers of x. σ: their standard deviation. "}γ: learned numbers. ${isRms ? "" : "β: learned numbers that some models do not have. "}⊙: number by number.`,
        figure: [rows([
          [`input of layer ${layer}`, strip(input[0], { name: "input" }), ["length ", value(norm(input[0]))]],
          ["what attention reads", strip(normalized[0], { name: "what attention reads" }), ["length ", value(norm(normalized[0]))]],
        ])],
        why: ["Each layer adds to the vectors. Without norms, they would grow from layer to layer, and a model with many layers could hardly be trained."],
      };
    },
  },
  {
    title: "Query, keys and values",
    draw: (scene) => {
      const { model, tokens, row, layer, head, outputs: { queries, keys, values }, term } = scene;
      const { head_size: size, num_key_value_heads: groups, positions } = model.layer_structure;
      const [k, v] = [peak(keys[head]), peak(values[head])];
      const x = isNormalizedAfter(model.layer_structure.block) ? "x" : "n"; // what attention reads
      return {
        say: [`Three `, term("matrix", "matrices"), ` of head ${head} turn vectors into a `, term("query"), " for ", named(tokens, row), ", and a ", term("key"), " and a ",
          term("value"), ` for every token. Each has ${size} numbers.`],
        formulas: [`q_i = ${x}_i W^Q + b^Q`, `k_j = ${x}_j W^K + b^K`, `v_j = ${x}_j W^V + b^V`],
        symbols: `W: learned matrices of layer ${layer} and head ${head}, ${model.hidden_size} × ${size} numbers each. b: learned vectors, in models that have them. `
          + `${x === "n" ? "n: the vectors that attention reads (step 3). " : ""}i: the token that we follow. j: every token.`,
        figure: [rows([[["query of ", named(tokens, row)], strip(queries[head][0], { name: "query" })]], "Query"),
          perToken(scene, ["key", "value"], (place) => [
            strip(keys[head][place], { name: `key of ${label(tokens, place)}`, largest: k }),
            strip(values[head][place], { name: `value of ${label(tokens, place)}`, largest: v })])],
        why: ["The query is what the token looks for, the key what a token can be found by, the value what it passes on. "
          + "These are different roles, so the model learned a matrix for each.",
          groups < model.num_attention_heads ? ` In this model, ${model.num_attention_heads / groups} heads share keys and values.` : "",
          positions.includes("rotary") ? " Queries and keys are shown after their rotation by position." : "",
          " Each head has its own matrices: select another head above, and all numbers change."],
      };
    },
  },
  {
    title: "The query meets every key",
    draw: (scene) => {
      const { tokens, row, head, outputs: { queries, keys }, term } = scene;
      const query = queries[head][0];
      const products = keys[head].map((/** @type {number[]} */ key) => key.map((component, place) => component * query[place]));
      const sums = dots(scene);
      const largest = peak(products);
      const hidden = hiddenPlaces(scene);
      const best = sums.indexOf(Math.max(...sums.filter((_, place) => !hidden.has(place))));
      return {
        say: ["The ", term("dot product"), " says how well a key fits the query. For ", named(tokens, row), `, the best fit${hidden.size ? " among the tokens that it may attend to" : ""} is `,
          named(tokens, best), " with ", value(sums[best]), "."],
        formulas: [`q_i \\cdot k_j = \\sum_m q_{i m} k_{j m}`],
        symbols: `m: the numbers of a vector, from 1 to ${query.length}.`,
        figure: [perToken(scene, ["sum", "products of the numbers"], (place) => [
          value(sums[place]), strip(products[place], { name: `products with ${label(tokens, place)}`, largest })])],
        why: ["There is no rule of grammar here. In training, queries and keys were adjusted until tokens that are useful to each other fit. "
          + "A single head need not make sense to a reader."],
      };
    },
  },
  {
    title: "The scores are scaled",
    draw: (scene) => {
      const { model, head, outputs: { scores }, switches, term } = scene;
      const { head_size: size, attention_scale: scale, positions } = model.layer_structure;
      const isRelative = positions.includes("relative");
      const sums = dots(scene);
      // The bias of the distance is not divided.
      const unscaled = sums.map((sum, place) => scores[head][0][place] + sum - scale * sum);
      const hidden = hiddenPlaces(scene);
      const [usual, extreme] = [scene.outputs.weights[head][0], softmax(unscaled, (place) => !hidden.has(place))];
      const isRoot = Math.abs(scale * Math.sqrt(size) - 1) < 1e-3;
      const isScaled = Math.abs(scale - 1) > 1e-6;
      const divisor = formatNumber(1 / scale);
      const bias = isRelative ? " + b_{i - j}" : "";
      return {
        say: !isScaled ? ["This model uses the dot products as they are, without ", term("scaling"), "."]
          : ["Each dot product is divided by ", isRoot ? `the square root of ${size}: ` : "", divisor, " (", term("scaling"), "). With it, the largest weight will be ",
            value(Math.max(...usual)), ", without it ", value(Math.max(...extreme)), "."],
        formulas: [switches.unscaled || !isScaled ? `s_j = q_i \\cdot k_j${bias}` : `s_j = \\frac{q_i \\cdot k_j}{${isRoot ? "\\sqrt{d_k}" : divisor}}${bias}`, ...(isRoot && !switches.unscaled ? [`d_k = ${size}`] : [])],
        symbols: `s: the scores. d${"\u2096"}: how many numbers a key has. Step 8 turns the scores into weights that sum to 1.${isRelative ? " b: a value for the distance of the two tokens." : ""}`,
        figure: [
          isScaled && toggle("Without the division", switches.unscaled, (on) => scene.onSwitch("unscaled", on)),
          perToken(scene, ["dot product", ...(isRelative ? ["bias b"] : []), "score", switches.unscaled ? "weight without the division" : "weight (step 8)"], (place) => [
            value(sums[place]), ...(isRelative ? [value(scores[head][0][place] - scale * sums[place])] : []),
            value(switches.unscaled ? unscaled[place] : scores[head][0][place]), bar(switches.unscaled ? extreme[place] : usual[place])]),
        ].filter((node) => node !== false),
        why: [`A dot product is a sum of ${size} products. The more there are, the larger it can become: typically as the square root of their number. Large scores make the `,
          term("softmax"), " of step 8 choose one token and ignore the others, and training can hardly change such a choice. Divided by the root, scores typically have the same size for any number of products. A head whose products are small shows little of this."],
      };
    },
  },
  {
    title: "A mask may hide tokens",
    draw: (scene) => {
      const { tokens, row, head, outputs: { scores, weights }, model, switches, term } = scene;
      const own = weights[head][0];
      const hidden = hiddenPlaces(scene);
      const later = tokens.length - 1 - row;
      const isCausal = model.attention === "causal";
      const causal = switches.causal && !isCausal;
      const shown = causal ? softmax(scores[head][0], (place) => place <= row && !hidden.has(place)) : own;
      return {
        say: isCausal
          ? ["This model is causal: a ", term("mask"), " hides the ", String(later), " tokens after ", named(tokens, row),
            hidden.size > later ? `, and in this layer ${hidden.size - later} before it, which are outside of its window.` : "."]
          : hidden.size ? ["A ", term("mask"), " hides tokens that are too far away from ", named(tokens, row), `: ${hidden.size} of ${tokens.length} are outside of the window of this layer.`]
            : causal ? ["With a causal mask, ", named(tokens, row), ` would attend to itself and the ${row} tokens before it. This model has none.`]
              : ["In this layer nothing is hidden: ", named(tokens, row), " attends to all tokens of its text, before and after it. Other models have a ", term("mask"), "."],
        formulas: ["s_j = {-\\infty} \\text{ if token } j \\text{ is hidden}"],
        symbols: "A score of minus infinity becomes the weight 0 in step 8.",
        figure: [
          !isCausal && toggle("Try a causal mask, which hides later tokens", switches.causal, (on) => scene.onSwitch("causal", on)),
          perToken(scene, ["score", "visible", causal ? "weight with a causal mask" : "weight (step 8)"], (place) => {
            const isHidden = hidden.has(place) || (causal && place > row);
            return [isHidden ? "\u2212∞" : value(scores[head][0][place]), isHidden ? "no" : "yes", bar(shown[place])];
          }),
        ].filter((node) => node !== false),
        why: ["Models that write text predict the next token, so they must not see it. Models that only read may see the whole text."],
      };
    },
  },
  {
    title: "Softmax turns scores into weights",
    draw: (scene) => {
      const { tokens, row, head, outputs: { scores, weights }, roles, term } = scene;
      const own = weights[head][0];
      const best = own.indexOf(Math.max(...own));
      const hidden = hiddenPlaces(scene);
      const special = own.reduce((sum, weight, place) => (tokens[place].special ? sum + weight : sum), 0);
      return {
        say: [term("softmax", "Softmax"), " turns the scores into shares that sum to 1: the ", term("attention weight", "attention weights"), " of ", named(tokens, row), ". The largest is that of ",
          named(tokens, best), ": ", value(own[best]), ".", roles[head] ? ` On average over all tokens, head ${head} attends ${roles[head]}${tokens[best].special ? "" : "; here it does not"}.` : ""],
        formulas: ["α_j = \\frac{e^{s_j}}{\\sum_n e^{s_n}}"],
        symbols: "α: the weights. e: 2.718. n: all tokens.",
        figure: [perToken(scene, ["score", "weight"], (place) => [hidden.has(place) ? "\u2212∞" : value(scores[head][0][place]), bar(own[place])],
          ["sum", "", bar(0, own.reduce((sum, weight) => sum + weight, 0))]), finder(scene)],
        why: ["Shares can be compared, and all are positive. A score that is larger by 1 gets 2.718 times the weight.",
          ...(special > SINK ? [" Special tokens get ", value(special), " here. Many heads put weight on them when no other token fits, because the weights must sum to 1: an ", term("attention sink"), "."] : [])],
      };
    },
  },
  {
    title: "The values are mixed",
    draw: (scene) => {
      const { tokens, row, head, outputs: { weights, values, heads }, term } = scene;
      const parts = values[head].map((/** @type {number[]} */ vector, /** @type {number} */ place) => scaled(vector, weights[head][0][place]));
      const lengths = parts.map(norm);
      const largest = peak([...parts, heads[head][0]]);
      const best = lengths.indexOf(Math.max(...lengths));
      return {
        say: ["Each ", term("value"), " is multiplied by its weight, and all are summed. ", named(tokens, best), " contributes the vector with the largest ", term("length"), ": ", value(lengths[best]), "."],
        formulas: [`\\text{head}_{${head}} = \\sum_j α_j v_j`],
        symbols: `head: the output of head ${head} for the token, ${heads[head][0].length} numbers.`,
        figure: [perToken(scene, ["weight", "length", "weighted value"], (place) => [
          value(weights[head][0][place]), value(lengths[place]), strip(parts[place], { name: `weighted value of ${label(tokens, place)}`, largest })],
        ["sum", "", value(norm(heads[head][0])), strip(heads[head][0], { name: "sum of the weighted values", largest })])],
        why: ["Here words meet: the output of the head for ", named(tokens, row), " is made of parts of all tokens. "
          + "The weight is not all that counts: a token whose value is near zero adds little, however large its weight."],
      };
    },
  },
  {
    title: "The heads come together",
    draw: ({ model, tokens, row, layer, head, outputs: { heads, projected, weights }, roles, onPlace, term }) => {
      const largest = peak(heads.map(([vector]) => vector));
      const favorite = (/** @type {number[]} */ own) => {
        const place = own.reduce((best, weight, index) => (!tokens[index].special && index !== row && weight > (own[best] ?? -1) ? index : best), -1);
        return place < 0 ? "" : [named(tokens, place), " ", value(own[place])];
      };
      return {
        say: [`Layer ${layer} has ${model.num_attention_heads} `, term("head", "heads"), ` with ${model.layer_structure.head_size} numbers each. Side by side these are `,
          formatCount(heads.length * heads[0][0].length), ` numbers. Another `, term("matrix"), ` turns them into ${model.hidden_size}, as many as the vector of the token has.`],
        formulas: [`\\text{all} = \\text{Concat}(\\text{head}_0, \\dots, \\text{head}_{${heads.length - 1}})`, model.layer_structure.block === "sandwich" ? "\\text{MultiHead} = \\text{Norm}(\\text{all } W^O + b^O)" : "\\text{MultiHead} = \\text{all } W^O + b^O"],
        symbols: "Concat: side by side. W, b: learned (some models have no b).",
        figure: [
          rows(heads.map(([vector], number) => [
            button(`head ${number}${roles[number] ? ` (${roles[number]})` : ""}`, () => onPlace({ head: number }), { id: `walk-head-${number}`, className: "plain", "aria-pressed": String(number === head) }),
            favorite(weights[number][0]), strip(vector, { name: `head ${number}`, largest }),
          ]), "Heads", ["head", "most attended other word", "output"]),
          rows([["output of the attention", strip(projected[0], { name: "output of the attention" })]]),
        ],
        why: ["One head has one set of weights. Several heads can attend to different tokens at the same time, one to the previous token, another to a word with a related meaning. "
          + "Select a head to follow it."],
      };
    },
  },
  {
    title: "The result is added to the vector",
    draw: ({ model, tokens, row, outputs: { input, projected, residual }, term }) => {
      const { block } = model.layer_structure, normalized = isNormalizedAfter(block);
      const largest = peak([input[0], projected[0], residual[0]]);
      const sum = block === "double_post" ? "\\text{Norm}(x + \\text{Norm}(x + \\text{MultiHead}(x)))" : "\\text{Norm}(x + \\text{MultiHead}(x))";
      return {
        say: ["The output of the attention is added to the vector of ", named(tokens, row), ": a ", term("residual connection"), ". Old and new vector have a ",
          term("cosine similarity", "similarity"), " of ", value(cosine(input[0], residual[0])), "."],
        formulas: [normalized ? `y = ${sum}` : "y = x + \\text{MultiHead}(n)"],
        symbols: `x: the vector before. y: the vector after. ${normalized ? "Norm: see step 3. " : "n: what attention reads (step 3). "}Lengths do not add up, because the vectors point in different directions${normalized ? ", and the norm changes the length of the sum" : ""}.`,
        figure: [change(["vector before", input[0]], ["+ output of the attention", projected[0]], [normalized ? "= sum, normalized" : "= sum", residual[0]], largest)],
        why: ["Attention changes a vector, it does not replace it, so that what earlier layers found is kept."],
      };
    },
  },
  {
    title: "A network works on each vector",
    draw: ({ model, tokens, row, outputs: { residual, feed_forward: added, output }, term }) => {
      const { intermediate_size: inner, gated, block } = model.layer_structure;
      const largest = peak([residual[0], added[0], output[0]]);
      const network = gated ? "\\text{FFN}(y) = (f(y W_1) \\odot y W_3) W_2" : "\\text{FFN}(y) = f(y W_1 + b_1) W_2 + b_2";
      return {
        say: ["The ", term("feed-forward network"), " reads only the vector of ", named(tokens, row), `. A matrix turns its ${model.hidden_size} numbers into ${formatCount(inner)}, `
          + `a second one turns these into ${model.hidden_size}, which are added to the vector.`],
        formulas: [network, isNormalizedAfter(block) ? "z = \\text{Norm}(y + \\text{FFN}(y))" : block === "pre" ? "z = y + \\text{FFN}(\\text{Norm}(y))" : "z = y + \\text{Norm}(\\text{FFN}(\\text{Norm}(y)))"],
        symbols: `W, b: learned${gated ? " (b in models that have them)" : ""}. f: a function that lets positive numbers pass and holds back most negative ones. z: the output of the layer.`,
        figure: [change(["vector after attention", residual[0]], ["+ output of the network", added[0]], [isNormalizedAfter(block) ? "= sum, normalized" : "= sum", output[0]], largest)],
        why: [`Attention moves information between tokens, the network works on what has arrived in each. Each of its ${formatCount(inner)} inner numbers reacts to a pattern in the vector: f is what makes it react or not.`],
      };
    },
  },
  {
    title: "The next layer continues",
    draw: ({ model, tokens, row, layer, outputs: { output }, other, similarities: values, words, isPair, onPlace, term }) => {
      const count = model.num_hidden_layers;
      const last = layer === count;
      return {
        say: ["This is the ", term("hidden state"), " of ", named(tokens, row), ` after layer ${layer} of ${count}. `,
          ...(values ? ["Its ", term("cosine similarity", "similarity"), " to ", bdi(other ?? ""), " in the second sentence began at ", value(values[0]), ". It is ",
            value(values[layer]), " now", last ? (model.layer_structure.block === "post" ? "." : ", after a final norm.") : [", and ", value(values[count]), " at the end."]].flat()
            : isPair ? ["To compare it with a second sentence, remove the second text of the pair."] : other !== null ? [] : ["Enter a second sentence that contains the token to see how the two vectors move apart."])],
        formulas: [last ? "\\text{the last layer}" : `x^{(${layer + 1})} = z^{(${layer})}`],
        symbols: last ? "" : "The output z of a layer is the input x of the next one.",
        figure: [
          rows([["output of the layer", strip(output[0], { name: "output of the layer" })]]),
          ...(values ? [element("div", { className: "figure" }, lineChart(
            [{ className: "static", values: values.map(() => values[0]), label: "before layer 1" }, { className: "context unknown", values, label: "in context", marked: true }],
            { description: `Similarity to the word in the second sentence: ${values.map((number, place) => `layer ${place} ${formatNumber(number)}`).join(", ")}.`,
              measure: "cosine", width: CHART_WIDTH, layer }))] : []),
          ...(words ? [element("h3", {}, "What the vector means in each layer"),
            rows(words.map(({ layer: number, predictions }) => [
              [number ? `layer ${number}` : "input of layer 1"],
              predictions.flatMap(({ token, probability }, place) => [place ? ", " : "",
                element("span", { className: "guess" }, element(number === layer ? "strong" : "span", {}, bdi(withoutSpace(token))), " ", value(probability))]),
            ]), "Words by layer", ["vector", "words and their probabilities"]),
            element("p", { className: "quiet" }, "This model was trained to guess hidden words. Its last part turns a vector into a probability for each word. "
              + "It was trained on the last layer only, so take the other layers as a hint.")] : []),
          element("p", { className: "actions" }, button(last ? "Start again at layer 1" : `Follow it through layer ${layer + 1}`, () => onPlace(last ? { layer: 1, step: 0 } : { layer: layer + 1, step: 2 }), { id: "walk-on" })),
        ],
        why: ["Each layer repeats steps 3 to 12 with its own learned numbers, and reads vectors that already contain their neighbors. ",
          "That is how one dictionary entry becomes two vectors in two sentences: they part in step 9, where each takes in the values of its own neighbors. The similarity can also rise again: a layer mixes in whatever its heads attend to."],
      };
    },
  },
];

/**
 * Draw the vectors of the positions of a text, one below the other, and their similarity to that of the followed token.
 *
 * @param {Scene} scene
 * @param {number[][][]} positions
 */
function positionTable(scene, [vectors, others]) {
  const { row, otherRow, tokens } = scene;
  const largest = peak(vectors);
  const place = otherRow < 0 ? "" : otherRow === row ? ", in the second sentence too"
    : `, in the second sentence position ${otherRow + 1}. The vectors of these two have similarity ${formatNumber(cosine(vectors[row], others[otherRow]))}`;
  return element("div", { className: "figure" }, element("h3", {}, "The vectors of the positions"),
    perToken(scene, ["position", "its vector P", `similarity to position ${row + 1}`], (index) => [
      String(index + 1), strip(vectors[index], { name: `position ${index + 1}`, largest }), value(cosine(vectors[index], vectors[row]))]),
    ...(isSinusoidal(vectors) ? [waves(vectors, row)] : []),
    element("p", { className: "quiet note" }, bdi(tokens[row].text), ` has position ${row + 1}${place}. `,
      isSinusoidal(vectors) ? "A formula made this table: each number is a sine or cosine of the position, with a wavelength that grows from left to right."
        : "Each of these vectors was learned in training."));
}

/** Return whether attention and feed-forward network read the vector itself, and the sums are normalized. */
function isNormalizedAfter(/** @type {string} */ block) {
  return block === "post" || block === "double_post";
}

/** Return whether pairs of neighboring numbers are sine and cosine of the same angle, times a common factor. */
function isSinusoidal(/** @type {number[][]} */ vectors) {
  const power = vectors[0][0] ** 2 + vectors[0][1] ** 2;
  return vectors.every((vector) => vector.every((sine, place) => place % 2 || Math.abs(sine ** 2 + vector[place + 1] ** 2 - power) < 1e-3 * power));
}

/** Draw some numbers of the vectors of positions as curves. */
function waves(/** @type {number[][]} */ vectors, /** @type {number} */ row) {
  const places = [0, 1 / 8, 1 / 4].map((share) => 2 * Math.floor((share * vectors[0].length) / 2));
  const styles = ["same", "other", "static"];
  return lineChart(places.map((place, index) => ({ className: styles[index], label: `number ${place + 1}`, values: vectors.map((vector) => vector[place]) })), {
    description: `Numbers ${places.map((place) => place + 1).join(", ")} of the vectors of positions, as waves of growing length.`,
    measure: "number", width: CHART_WIDTH, layer: row, across: "position", first: 1 });
}

/**
 * Draw the angles by which a layer turns pairs of numbers of queries and keys, for each token.
 *
 * @param {Scene} scene
 * @param {number[][][]} positions
 */
function rotationTable(scene, [angles]) {
  const pairs = [...new Set([0, 1 / 8, 1 / 4, 1 / 2].map((share) => Math.floor(share * angles[0].length)))];
  return element("div", { className: "figure" }, element("h3", {}, `Rotations of layer ${scene.layer}, by position`),
    perToken(scene, pairs.map((pair) => `pair ${pair + 1}`), (index) => pairs.map((pair) => dial(angles[index][pair]))),
    element("p", { className: "quiet note" }, `Queries and keys have ${2 * angles[0].length} numbers, which form ${angles[0].length} pairs: number m and number m + ${angles[0].length}. `
      + "Each pair is turned like the hand of a clock. The first pairs turn fast from one position to the next, the last ones slowly."));
}

/** Draw an angle as the hand of a clock that starts at the right and turns counterclockwise. */
function dial(/** @type {number} */ angle) {
  const degrees = `${Math.round((((angle * 180) / Math.PI) % 360 + 360) % 360)}°`;
  return element("span", { className: "dial" }, svg("svg", { viewBox: "-1.2 -1.2 2.4 2.4", "aria-hidden": "true" }, svg("circle", { r: 1 }),
    svg("line", { x1: 0, y1: 0, x2: Math.cos(angle).toFixed(3), y2: (-Math.sin(angle)).toFixed(3) })), element("span", { className: "number" }, degrees));
}

/** Say to what a head attends by its measured role, or return "". */
export function roleName(/** @type {import("./heads.js").Role | undefined} */ role, /** @type {Token[]} */ tokens) {
  if (!role) return "";
  if (role.role === "first") return `mostly to ${tokens[0].text}`;
  if (role.role === "separator") return `mostly to ${tokens.findLast(({ special }) => special)?.text ?? "the separator"}`;
  return `mostly to the ${ROLES[role.role].name}`;
}

/** Return the places that a mask hides: their weight is 0, and not only because their score is so low. */
function hiddenPlaces(/** @type {Scene} */ { head, outputs: { scores, weights } }) {
  const own = weights[head][0];
  const largest = Math.max(...scores[head][0].filter((/** @type {number} */ _, /** @type {number} */ place) => own[place] > 0));
  return new Set(own.flatMap((/** @type {number} */ weight, /** @type {number} */ place) => (weight === 0 && largest - scores[head][0][place] < UNDERFLOW ? [place] : [])));
}

/** Return the dot products of the query with all keys. */
function dots(/** @type {Scene} */ { head, outputs: { queries, keys } }) {
  return keys[head].map((/** @type {number[]} */ key) => dot(queries[head][0], key));
}

/** Create a table of a sum of two vectors. */
function change(/** @type {[string, number[]]} */ before, /** @type {[string, number[]]} */ added, /** @type {[string, number[]]} */ after, /** @type {number} */ largest) {
  return rows([before, added, after].map(([title, vector]) => [title, ["length ", value(norm(vector))], strip(vector, { name: title.replace(/^[+=] /, ""), largest })]));
}

/**
 * Return all heads with the weight that a token gives to another one, the largest first, and the mean of the weights that
 * the other words give to it.
 *
 * @param {{layer: number, head: number, matrix: number[][]}[]} maps
 * @param {Token[]} tokens
 * @param {number} row
 * @param {number} target
 */
export function rankHeads(maps, tokens, row, target) {
  const others = tokens.map((_, place) => place).filter((place) => place !== row && place !== target && !tokens[place].special);
  return maps.map(({ layer, head, matrix }) => ({
    layer, head, weight: matrix[row][target], hasOthers: others.length > 0,
    mean: others.reduce((sum, place) => sum + matrix[place][target], 0) / (others.length || 1),
  })).toSorted((a, b) => b.weight - a.weight);
}

/** Create the search for the heads in which the token attends most to another one. */
function finder({ tokens, row, maps, target, onTarget, onPlace }) {
  if (!maps.length) return "";
  const places = tokens.map((_, place) => place).filter((place) => place !== row && !tokens[place].special);
  if (!places.length) return "";
  const selectivity = (/** @type {number} */ place) => Math.max(...rankHeads(maps, tokens, row, place).map(({ weight, mean }) => weight - mean));
  // Heads that attend to a neighbor say nothing about what the token refers to.
  const distant = places.filter((place) => Math.abs(place - row) > 1);
  const chosen = places.includes(target) ? target : (distant.length ? distant : places).toSorted((a, b) => selectivity(b) - selectivity(a))[0];
  const ranked = rankHeads(maps, tokens, row, chosen).slice(0, FOUND_HEADS);
  return element("div", { className: "finder" },
    select(`Heads in which “${label(tokens, row)}” gives most weight to`, places.map((place) => ({ value: String(place), text: label(tokens, place) })), String(chosen),
      (place) => onTarget(Number(place)), { id: "walk-target" }),
    rows(ranked.map(({ layer, head, weight, mean, hasOthers }) => [
      button(`layer ${layer}, head ${head}`, () => onPlace({ layer, head }), { id: `walk-found-${layer}-${head}`, className: "plain found" }), value(weight),
      hasOthers ? [value(mean), weight < SELECTIVE * mean ? ` (${label(tokens, chosen)} gets weight from other words too)` : ""] : ""]),
    "Heads", ["head", "weight", "mean weight from the other words"]),
    element("p", { className: "quiet note" }, "A large weight alone does not show that a head understands the link. Change a word so that ",
      element("strong", {}, bdi(tokens[row].text)), " should refer to another one, and look whether the weight moves with it."));
}

/** Return an entry of a vocabulary without the sign for a space before it. */
function withoutSpace(/** @type {string} */ token) {
  return token.replace(/^[\u0120\u2581](?=.)/u, "").trim();
}

function value(/** @type {number} */ number) {
  return element("span", { className: "number" }, formatNumber(number));
}

/** Return the name of a token as text, with an ordinal if it occurs several times. */
function label(/** @type {Token[]} */ tokens, /** @type {number} */ place) {
  return isolated(tokens[place].text) + ordinal(tokens, place);
}

function named(/** @type {Token[]} */ tokens, /** @type {number} */ place) {
  return element("strong", {}, bdi(tokens[place].text), ordinal(tokens, place));
}

function toggle(/** @type {string} */ text, /** @type {boolean} */ checked, /** @type {(on: boolean) => void} */ onChange) {
  const box = element("input", { type: "checkbox", id: "switch", checked, on: { change: () => onChange(box.checked) } });
  return element("label", { className: "check" }, box, text);
}

/** Create a table of vectors with their names. */
function rows(/** @type {(string | Node | (string | Node)[])[][]} */ cells, name = "Vectors", /** @type {string[]} */ titles = []) {
  const body = cells.map(([title, ...others]) => element("tr", {}, element("th", { scope: "row" }, ...[title].flat()),
    ...others.map((other) => element("td", {}, ...[other].flat()))));
  return withNote(scroller(name, element("table", { className: "walk" },
    titles.length ? element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)))) : "",
    element("tbody", {}, ...body))));
}

/** Add a note to a table if its strips are cut. */
function withNote(/** @type {HTMLElement} */ box) {
  const cut = /** @type {HTMLElement | null} */ (box.querySelector("[data-cut]"))?.dataset.cut;
  return element("div", {}, box, cut && element("p", { className: "quiet note" }, `The strips show ${cut} numbers.`));
}

/**
 * Create a table with a row per token. In long texts only the tokens with the largest weights are listed.
 *
 * @param {Scene} scene
 * @param {string[]} titles
 * @param {(place: number) => (string | Node)[]} cellsOf
 * @param {(string | Node)[]} [total] a last row
 */
function perToken({ tokens, row, head, outputs: { weights } }, titles, cellsOf, total) {
  const own = weights[head][0];
  const ranked = tokens.map((_, place) => place).toSorted((a, b) => Number(b === row) - Number(a === row) || own[b] - own[a]);
  const places = ranked.slice(0, MOST_ROWS).toSorted((a, b) => a - b);
  const rest = ranked.slice(MOST_ROWS);
  const body = places.map((place) => element("tr", { className: place === row ? "chosen" : "", "aria-current": place === row ? "true" : null },
    element("th", { scope: "row" }, bdi(tokens[place].text), ordinal(tokens, place)), ...cellsOf(place).map((cell) => element("td", {}, cell))));
  const more = rest.length && element("tr", {}, element("th", { scope: "row" }, "…"), element("td", { colSpan: titles.length },
    `${rest.length} more tokens, with weights that sum to `, value(rest.reduce((sum, place) => sum + own[place], 0))));
  const sum = total && element("tr", { className: "total" }, element("th", { scope: "row" }, total[0]), ...total.slice(1).map((cell) => element("td", {}, cell)));
  return scroller("Tokens", element("table", { className: "walk" },
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "token"), ...titles.map((title) => element("th", { scope: "col" }, title)))),
    element("tbody", {}, ...body, more || null, sum || null)));
}
