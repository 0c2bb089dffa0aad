import { lineChart } from "./chart.js";
import { button, element, scroller } from "./element.js";
import { ROLES } from "./heads.js";
import { bdi, isolated, ordinal } from "./naming.js";
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
 * @property {string | null} other the same token in the other sentence, or null without one
 * @property {number[] | null} journey the similarity to it, by layer
 * @property {{causal: boolean, unscaled: boolean}} switches
 * @property {(name: "causal" | "unscaled", value: boolean) => void} onSwitch
 * @property {(name: string, text?: string) => Node} term
 * @property {(head: number) => void} onHead
 * @property {(layer: number) => void} onLayer
 *
 * @typedef {(string | Node)[]} Text
 * @typedef {{title: string, draw: (scene: Scene) => {say: Text, formulas?: string[], figure: Node[], why: Text}}} Step
 */

const MOST_ROWS = 32;
const CHART_WIDTH = 640;
const SINK = 0.5; // weight on special tokens from which a note explains it

/** @type {Step[]} */
export const STEPS = [
  {
    title: "The text becomes tokens",
    draw: ({ model, tokens, row, term }) => ({
      say: ["The tokenizer splits the text into ", String(tokens.length), " ", term("token", "tokens"), ". Each is a row of a ",
        term("vocabulary"), " of ", formatCount(model.vocab_size), " tokens. We follow ", named(tokens, row), `, number ${tokens[row].id} of the vocabulary.`],
      formulas: [`t = (t_1, \\dots, t_T), T = ${tokens.length}, t_{${row + 1}} = ${tokens[row].id}`],
      figure: [element("ol", { className: "tokens", "aria-label": "Tokens with their numbers" }, ...tokens.map((token, place) =>
        element("li", { className: place === row ? "chosen" : "" }, element("span", { className: token.special ? "special" : "" }, bdi(token.text)),
          element("span", { className: "number quiet" }, String(token.id)))))],
      why: ["A model computes with numbers. The number of a token selects its row in a table of vectors. ",
        term("special token", "Special tokens"), " are not in the text: the model was trained with them at these places."],
    }),
  },
  {
    title: "Each token gets its vector from a table",
    draw: ({ model, tokens, row, embeddings, other, term }) => {
      const form = model.layer_form;
      const added = form.positions.includes("table");
      const parts = ["E_{t_i}", ...(added ? ["P_i"] : []), ...(form.segments ? ["S"] : [])].join(" + ");
      const names = ["this sentence", "the second sentence"];
      const vectors = (/** @type {string} */ label, /** @type {number[][]} */ list) => list.map((values, place) =>
        [`${label}, ${names[place]}`, strip(values, { name: `${label} of ${tokens[row].text}, ${names[place]}`, largest: peak(list) })]);
      const alike = embeddings && embeddings.static.length > 1;
      return {
        say: ["The ", term("embedding"), " of ", named(tokens, row), ` is row ${tokens[row].id} of a table: ${model.hidden_size} numbers, the same in every sentence. `,
          ...(!embeddings ? [] : alike ? ["In both sentences it is identical: ", value(cosine(embeddings.static[0], embeddings.static[1])),
            ". As input of the first layer: ", value(cosine(embeddings.input[0], embeddings.input[1])), "."]
            : ["The second sentence does not contain it."])],
        formulas: [`x_i = ${form.embedding_norm ? `\\text{Norm}(${parts})` : parts}`],
        figure: embeddings ? [rows([...vectors("embedding", embeddings.static), ...vectors("input of layer 1", embeddings.input)])] : [],
        why: [added ? "A vector for the " : "The embedding does not contain the ", term("position"),
          added ? " of the token is added, because attention by itself does not see the order of words. At the same position, the same word has the same input."
            : form.positions.includes("rotary") ? ". This model adds it later: it rotates queries and keys by an angle that grows with the position, so that their dot product depends on the distance of two tokens."
              : ". This model adds it later: the scores get a value that depends on the distance of two tokens.",
          other ? " What differs between the two sentences is all to come." : ""],
      };
    },
  },
  {
    title: "The vector is normalized",
    draw: ({ model, tokens, row, layer, outputs: { input, normalized }, term }) => {
      const isPost = model.layer_form.block === "post";
      const isRms = model.layer_form.norm === "rms_norm";
      const largest = peak([input[0], normalized[0]]);
      return {
        say: isPost
          ? [`This model normalizes at the end of each part (steps 11 and 12). Layer ${layer} reads the vector of `, named(tokens, row), " as it is."]
          : [`Layer ${layer} starts with a `, term("layer norm", "norm"), ": it gives the numbers of ", named(tokens, row), " a fixed size. The length changes from ",
            value(norm(input[0])), " to ", value(norm(normalized[0])), "."],
        formulas: [isRms ? "\\text{Norm}(x) = \\frac{x}{\\sqrt{\\text{mean}(x^2)}} \\odot γ" : "\\text{Norm}(x) = \\frac{x - μ}{σ} \\odot γ + β"],
        figure: [rows([
          [`input of layer ${layer}`, strip(input[0], { name: "input", largest })],
          [isPost ? "what attention reads" : "normalized", strip(normalized[0], { name: "normalized", largest })],
        ])],
        why: [isRms ? "The numbers are divided by the root of their mean square, " : "μ is the mean of the numbers, σ their standard deviation. They are rescaled, ",
          "then multiplied by learned factors γ", isRms ? "." : ", with β added.",
          " Without norms, vectors would grow from layer to layer, and training deep models would fail."],
      };
    },
  },
  {
    title: "Query, keys and values",
    draw: (scene) => {
      const { model, tokens, row, layer, head, outputs: { queries, keys, values }, term } = scene;
      const { head_size: size, num_key_value_heads: groups, positions } = model.layer_form;
      const [k, v] = [peak(keys[head]), peak(values[head])];
      return {
        say: [`Three matrices of head ${head} in layer ${layer} turn vectors into a `, term("query"), " for ", named(tokens, row), ", and a ", term("key"), " and a ",
          term("value"), ` for every token: ${size} numbers each.`],
        formulas: [`q_i = x_i W^Q + b^Q`, `k_j = x_j W^K + b^K`, `v_j = x_j W^V + b^V`,
          `(1 × ${model.hidden_size}) (${model.hidden_size} × ${size}) = (1 × ${size})`],
        figure: [rows([[["query of ", named(tokens, row)], strip(queries[head][0], { name: "query" })]]),
          perToken(scene, ["key", "value"], (place) => [
            strip(keys[head][place], { name: `key of ${label(tokens, place)}`, largest: k }),
            strip(values[head][place], { name: `value of ${label(tokens, place)}`, largest: v })])],
        why: ["The query is what the token looks for, the key what a token can be found by, the value what it passes on. "
          + "These are different roles, so the model learned a matrix for each.",
          groups < model.num_attention_heads ? ` In this model, ${model.num_attention_heads / groups} heads of queries share keys and values.` : "",
          positions.includes("rotary") ? " Queries and keys are shown after their rotation by position." : ""],
      };
    },
  },
  {
    title: "The query meets every key",
    draw: (scene) => {
      const { tokens, row, head, outputs: { queries, keys }, term } = scene;
      const query = queries[head][0];
      const products = keys[head].map((/** @type {number[]} */ key) => key.map((component, place) => component * query[place]));
      const sums = keys[head].map((/** @type {number[]} */ key) => dot(query, key));
      const largest = peak(products);
      const best = sums.indexOf(Math.max(...sums));
      return {
        say: ["The ", term("dot product"), " says how well a key fits the query. For ", named(tokens, row), ", the best fit is ",
          named(tokens, best), " with ", value(sums[best]), "."],
        formulas: [`q_i \\cdot k_j = \\sum_c q_{i c} k_{j c}`],
        figure: [perToken(scene, ["products of the components", "sum"], (place) => [
          strip(products[place], { name: `products with ${label(tokens, place)}`, largest }), value(sums[place])])],
        why: ["There is no rule of grammar here. Query and key were trained so that the tokens that are useful to each other fit. "
          + "Blue products raise the sum, orange ones lower it."],
      };
    },
  },
  {
    title: "Scores are scaled",
    draw: (scene) => {
      const { model, tokens, head, outputs: { queries, keys, scores }, switches, term } = scene;
      const { head_size: size, attention_scale: scale, positions } = model.layer_form;
      const sums = keys[head].map((/** @type {number[]} */ key) => dot(queries[head][0], key));
      const [usual, extreme] = [softmax(scores[head][0]), softmax(sums)];
      const weights = switches.unscaled ? extreme : usual;
      const isRoot = Math.abs(scale * Math.sqrt(size) - 1) < 1e-3;
      const divisor = formatNumber(1 / scale);
      return {
        say: ["Each dot product is divided by ", ...(isRoot ? [`the square root of ${size}: `] : []), divisor, " (", term("scaling"), "). Then the largest weight is ",
          value(Math.max(...usual)), ". Without the division it would be ", value(Math.max(...extreme)), "."],
        formulas: [`s_j = \\frac{q_i \\cdot k_j}{${isRoot ? "\\sqrt{d_k}" : divisor}}${positions.includes("relative") ? " + b_{i - j}" : ""}, d_k = ${size}`],
        figure: [
          toggle("Without the division", switches.unscaled, (on) => scene.onSwitch("unscaled", on)),
          perToken(scene, ["dot product", "score", switches.unscaled ? "weight without the division" : "weight (step 8)"], (place) => [
            value(sums[place]), value(switches.unscaled ? sums[place] : scores[head][0][place]), bar(weights[place])]),
        ],
        why: [`A dot product is a sum of ${size} products, so its spread grows with the square root of ${size}. `
          + "Softmax would give nearly all weight to one token, and the others would not learn. The division removes that growth.",
          positions.includes("relative") ? " This model then adds a learned value for the distance of the two tokens." : ""],
      };
    },
  },
  {
    title: "Some tokens are masked",
    draw: (scene) => {
      const { tokens, row, head, outputs: { scores, weights }, model, switches, term } = scene;
      const own = weights[head][0];
      const hidden = own.filter((/** @type {number} */ weight) => weight === 0).length;
      const isCausal = model.attention === "causal";
      const causal = switches.causal && !isCausal;
      const shown = causal ? softmax(scores[head][0], (place) => place <= row) : own;
      return {
        say: isCausal
          ? ["This model is causal: ", named(tokens, row), " attends to itself and to the tokens before it. ", String(hidden), " later tokens are hidden by the ", term("mask"), "."]
          : hidden ? ["Layers of this model attend within a window: ", String(hidden), " tokens are too far away from ", named(tokens, row), ", and hidden by the ", term("mask"), "."]
            : ["Nothing is hidden here: in this model, ", named(tokens, row), " attends to all tokens of its text, before and after it. Other models use a ", term("mask"), "."],
        formulas: ["s_j = {-\\infty} \\text{ if token } j \\text{ is masked}"],
        figure: [
          !isCausal && toggle("Show what a causal mask would do (an explanation, not a result of this model)", switches.causal, (on) => scene.onSwitch("causal", on)),
          perToken(scene, ["score", "visible", causal ? "weight with a causal mask" : "weight (step 8)"], (place) => {
            const isHidden = shown[place] === 0;
            return [isHidden ? "\u2212∞" : value(scores[head][0][place]), isHidden ? "no" : "yes", bar(shown[place])];
          }),
        ].filter((node) => node !== false),
        why: ["Models that write text predict the next token, so they must not see it. Models that read see the whole text. "
          + "Where texts are filled up to the same length, the filling is masked too; this server packs texts without filling."],
      };
    },
  },
  {
    title: "Softmax makes weights",
    draw: (scene) => {
      const { tokens, row, head, outputs: { scores, weights }, roles, term } = scene;
      const own = weights[head][0];
      const best = own.indexOf(Math.max(...own));
      const special = own.reduce((sum, weight, place) => (tokens[place].special ? sum + weight : sum), 0);
      return {
        say: [term("softmax", "Softmax"), " turns scores into shares that sum to 1: the ", term("attention weight", "attention weights"), " of ", named(tokens, row), ". The largest is that of ",
          named(tokens, best), ": ", value(own[best]), ".",
          roles[head] ? ` Head ${head} has a pattern: ${roles[head]}.` : ""],
        formulas: ["α_j = \\frac{e^{s_j}}{\\sum_k e^{s_k}}"],
        figure: [perToken(scene, ["score", "weight"], (place) => [own[place] === 0 ? "\u2212∞" : value(scores[head][0][place]), bar(own[place])],
          ["sum", "", bar(0, own.reduce((sum, weight) => sum + weight, 0))])],
        why: ["Shares can be compared, and their sum does not depend on the length of the text. The exponential function makes all of them positive, and larger scores count more than in proportion.",
          ...(special > SINK ? [" Special tokens get ", value(special), " here. They are an ", term("attention sink"), ": a head that finds nothing to read rests on them, because the weights must sum to 1."] : [])],
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
        say: ["Each ", term("value"), " is multiplied by its weight, and all are summed. ", named(tokens, best), " adds the longest vector: ", value(lengths[best]), "."],
        formulas: [`\\text{head}_{${head}} = \\sum_j α_j v_j`],
        figure: [perToken(scene, ["weight", "weighted value", "length"], (place) => [
          value(weights[head][0][place]), strip(parts[place], { name: `weighted value of ${label(tokens, place)}`, largest }), value(lengths[place])],
        ["sum", "", strip(heads[head][0], { name: "sum of the weighted values", largest }), value(norm(heads[head][0]))])],
        why: ["This is where words meet: from now on, the vector of ", named(tokens, row), " contains parts of the other tokens. "
          + "A weight is not all that counts: a token with a value near zero adds little, however large its weight."],
      };
    },
  },
  {
    title: "The heads come together",
    draw: ({ model, layer, head, outputs: { heads, projected }, roles, onHead, term }) => {
      const largest = peak(heads.map(([vector]) => vector));
      return {
        say: [`Layer ${layer} has ${model.num_attention_heads} `, term("head", "heads"), ` with ${model.layer_form.head_size} numbers each. Side by side they are `,
          formatCount(heads.length * heads[0][0].length), ` numbers. The matrix W`, element("sup", {}, "O"), ` turns these into ${model.hidden_size}.`],
        formulas: [`c = \\text{Concat}(\\text{head}_0, \\dots, \\text{head}_{${heads.length - 1}})`, "\\text{MultiHead} = c W^O + b^O"],
        figure: [
          rows(heads.map(([vector], number) => [
            button(`head ${number}${roles[number] ? `: ${roles[number]}` : ""}`, () => onHead(number), { className: "plain", "aria-pressed": String(number === head) }),
            strip(vector, { name: `head ${number}`, largest }),
          ]), "Heads"),
          rows([["output of the attention", strip(projected[0], { name: "output of the attention" })]]),
        ],
        why: ["One head has one set of weights. Several heads can look at different tokens at the same time: one at the previous token, another at a word with a related meaning. "
          + "The last matrix mixes what they found. Select a head to follow it."],
      };
    },
  },
  {
    title: "The result is added to the vector",
    draw: ({ model, tokens, row, outputs: { input, projected, residual }, term }) => {
      const { block } = model.layer_form;
      const largest = peak([input[0], projected[0], residual[0]]);
      return {
        say: ["The output of the attention is added to the vector of ", named(tokens, row), ": a ", term("residual connection"), ". Old and new vector have a similarity of ",
          value(cosine(input[0], residual[0])), "."],
        formulas: [block === "post" ? "y = \\text{Norm}(x + \\text{MultiHead}(x))" : block === "pre" ? "y = x + \\text{MultiHead}(\\text{Norm}(x))" : "y = x + \\text{Norm}(\\text{MultiHead}(\\text{Norm}(x)))"],
        figure: [rows([
          ["vector before", strip(input[0], { name: "vector before", largest }), ["length ", value(norm(input[0]))]],
          ["+ output of the attention", strip(projected[0], { name: "output of the attention", largest }), ["length ", value(norm(projected[0]))]],
          [block === "post" ? "= sum, normalized" : "= sum", strip(residual[0], { name: "sum", largest }), ["length ", value(norm(residual[0]))]],
        ])],
        why: ["Attention changes a vector, it does not replace it: what earlier layers found is kept. "
          + "The direct path also lets the error signal of training reach the first layers."],
      };
    },
  },
  {
    title: "A network works on each vector",
    draw: ({ model, tokens, row, outputs: { residual, feed_forward: added, output }, term }) => {
      const { intermediate_size: inner, gated, block } = model.layer_form;
      const largest = peak([residual[0], added[0], output[0]]);
      const network = gated ? "\\text{FFN}(y) = (f(y W_1) \\odot y W_3) W_2" : "\\text{FFN}(y) = f(y W_1 + b_1) W_2 + b_2";
      return {
        say: ["The ", term("feed-forward network"), " reads the vector of ", named(tokens, row), ` only. From its ${model.hidden_size} numbers it computes ${formatCount(inner)}, `
          + `from these ${model.hidden_size} again, and adds them.`],
        formulas: [network, block === "post" ? "z = \\text{Norm}(y + \\text{FFN}(y))" : block === "pre" ? "z = y + \\text{FFN}(\\text{Norm}(y))" : "z = y + \\text{Norm}(\\text{FFN}(\\text{Norm}(y)))"],
        figure: [rows([
          ["vector after attention", strip(residual[0], { name: "vector after attention", largest }), ["length ", value(norm(residual[0]))]],
          ["+ output of the network", strip(added[0], { name: "output of the network", largest }), ["length ", value(norm(added[0]))]],
          [block === "post" ? "= sum, normalized" : "= sum", strip(output[0], { name: "output of the layer", largest }), ["length ", value(norm(output[0]))]],
        ])],
        why: ["Attention moves information between tokens. The network works on what has arrived: f sets about half of the inner numbers to nearly zero, so that it can react to combinations."],
      };
    },
  },
  {
    title: "The next layer continues",
    draw: ({ model, tokens, row, layer, outputs: { output }, other, journey: values, onLayer, term }) => {
      const count = model.num_hidden_layers;
      const last = layer === count;
      return {
        say: [`This is the `, term("hidden state"), " of ", named(tokens, row), ` after layer ${layer} of ${count}. `,
          ...(values ? ["Its ", term("cosine similarity", "similarity"), " to ", bdi(other ?? ""), " in the second sentence began at ", value(values[0]), ". It is ",
            value(values[layer]), " now", last ? "." : [", and ", value(values[count]), " at the end."]].flat()
            : other ? [] : ["Enter a second sentence that contains the word to see how the two vectors move apart."])],
        formulas: [last ? "\\text{the last layer}" : `x^{(${layer + 1})} = z^{(${layer})}`],
        figure: [
          rows([["output of the layer", strip(output[0], { name: "output of the layer" })]]),
          ...(values ? [element("div", { className: "figure" }, lineChart(
            [{ className: "static", values: values.map(() => values[0]), label: "before layer 1" }, { className: "context unknown", values, label: "in context", marked: true }],
            { description: `Similarity to the word in the second sentence: ${values.map((number, place) => `layer ${place} ${formatNumber(number)}`).join(", ")}.`,
              measure: "cosine", width: CHART_WIDTH, layer }))] : []),
          element("p", { className: "actions" }, button(last ? "Start again at layer 1" : `Follow it through layer ${layer + 1}`, () => onLayer(last ? 1 : layer + 1))),
        ],
        why: ["Each layer repeats steps 3 to 12 with other weights, and reads vectors that already contain their neighbors. ",
          "That is how the same entry of the table becomes two different vectors in two sentences."],
      };
    },
  },
];

/** Name what a head does, by its measured role, or return "". */
export function roleName(/** @type {import("./heads.js").Role | undefined} */ role) {
  return role ? `attends to the ${ROLES[role.role].name}` : "";
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
function rows(/** @type {(string | Node | (string | Node)[])[][]} */ cells, name = "Vectors") {
  const body = cells.map(([title, ...others]) => element("tr", {}, element("th", { scope: "row" }, ...[title].flat()),
    ...others.map((other) => element("td", {}, ...[other].flat()))));
  return withNote(scroller(name, element("table", { className: "walk" }, element("tbody", {}, ...body))));
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
  const body = places.map((place) => element("tr", { className: place === row ? "chosen" : "" },
    element("th", { scope: "row" }, bdi(tokens[place].text)), ...cellsOf(place).map((cell) => element("td", {}, cell))));
  const more = rest.length && element("tr", {}, element("th", { scope: "row" }, "…"), element("td", { colSpan: titles.length },
    `${rest.length} more tokens, with weights that sum to `, value(rest.reduce((sum, place) => sum + own[place], 0))));
  const sum = total && element("tr", { className: "total" }, element("th", { scope: "row" }, total[0]), ...total.slice(1).map((cell) => element("td", {}, cell)));
  return scroller("Tokens", element("table", { className: "walk" },
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "token"), ...titles.map((title) => element("th", { scope: "col" }, title)))),
    element("tbody", {}, ...body, more || null, sum || null)));
}
