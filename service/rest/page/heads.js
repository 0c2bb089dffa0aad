import { decodeTensor } from "./number.js";

/**
 * Names for what an attention head does, by a measured rule. docs/maps.md describes it.
 *
 * @typedef {{text: string, special: boolean}} Token
 * @typedef {{role: string, value: number}} Role  `value`: the mean attention weight that the rule measures
 */

/** The mean weight from which a head gets a name. */
export const THRESHOLD = 0.5;
const FEWEST_ROWS = 5;
const FEWEST_REPEATS = 2;

/** @type {Record<string, {symbol: string, name: string, tokens: string}>} `tokens`: those whose weight counts */
export const ROLES = {
  previous: { symbol: "←", name: "previous token", tokens: "previous token" },
  next: { symbol: "→", name: "next token", tokens: "next token" },
  first: { symbol: "C", name: "first token", tokens: "first special token, such as [CLS]" },
  separator: { symbol: "S", name: "separator", tokens: "separator, such as [SEP]" },
  same: { symbol: "=", name: "same token", tokens: "same token" },
};

/**
 * Return the columns whose weight a role counts in a row, or null if the row does not count for the role.
 *
 * @type {Record<string, (tokens: Token[], row: number) => number[] | null>}
 */
const COLUMNS = {
  previous: (tokens, row) => (row > 0 && !tokens[row - 1].special ? [row - 1] : null),
  next: (tokens, row) => (row + 1 < tokens.length && !tokens[row + 1].special ? [row + 1] : null),
  first: (tokens) => (tokens[0].special ? [0] : null),
  separator: (tokens) => tokens.flatMap(({ special }, column) => (special && column > 0 ? column : [])),
  same: (tokens, row) => {
    const text = tokens[row].text.toLowerCase();
    const equal = tokens.flatMap((token, column) =>
      (column !== row && !token.special && token.text.toLowerCase() === text ? column : []));
    return equal.length ? equal : null;
  },
};

/**
 * Return the role of each head, by layer and head, such as "3.5".
 *
 * @param {any} response of POST /v1/attend for kind probs, all layers and heads, unit token, special tokens kept
 * @returns {Map<string, Role>}
 */
export function rolesOf(response) {
  /** @type {Map<string, Record<string, {sum: number, rows: number}>>} */
  const totals = new Map();
  for (const { units, maps } of response.results) {
    const columns = Object.entries(COLUMNS).map(([role, columnsOf]) => ({
      role, rows: units.map((token, row) => (token.special ? null : columnsOf(units, row))),
    }));
    for (const { layer, head, matrix } of maps) {
      const weights = Array.isArray(matrix) ? matrix : decodeTensor(matrix);
      const total = totals.get(`${layer}.${head}`) ?? {};
      totals.set(`${layer}.${head}`, total);
      for (const { role, rows } of columns) {
        total[role] ??= { sum: 0, rows: 0 };
        rows.forEach((counted, row) => {
          if (!counted) return;
          total[role].rows += 1;
          total[role].sum += counted.reduce((sum, column) => sum + weights[row][column], 0);
        });
      }
    }
  }
  return new Map([...totals].flatMap(([key, total]) => {
    const role = roleOf(total);
    return role ? [[key, role]] : [];
  }));
}

/**
 * Return the role with the largest mean weight that reaches the threshold on enough rows.
 *
 * @param {Record<string, {sum: number, rows: number}>} total
 * @returns {Role | null}
 */
function roleOf(total) {
  const means = Object.entries(total)
    .filter(([role, { rows }]) => rows >= (role === "same" ? FEWEST_REPEATS : FEWEST_ROWS))
    .map(([role, { sum, rows }]) => ({ role, value: sum / rows }))
    .filter(({ value }) => value >= THRESHOLD);
  return means.toSorted((a, b) => b.value - a.value)[0] ?? null;
}
