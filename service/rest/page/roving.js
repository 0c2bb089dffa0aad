const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/**
 * Add a roving tabindex to a grid of elements. The arrow keys, Home and End move the focus inside the grid. With Ctrl,
 * Home and End move it to the corners.
 *
 * @param {HTMLElement} root ancestor of all elements
 * @param {HTMLElement[][]} grid rows of focusable elements
 * @param {[number, number]} [start] row and column of the first Tab stop
 */
export function rove(root, grid, [row, column] = [0, 0]) {
  const places = new Map();
  grid.forEach((cells, y) => cells.forEach((cell, x) => {
    cell.tabIndex = y === row && x === column ? 0 : -1;
    places.set(cell, [y, x]);
  }));
  let stop = grid[row]?.[column];

  root.addEventListener("focusin", (event) => {
    if (!places.has(event.target)) return;
    if (stop) stop.tabIndex = -1;
    stop = /** @type {HTMLElement} */ (event.target);
    stop.tabIndex = 0;
  });

  root.addEventListener("keydown", (event) => {
    const position = places.get(event.target);
    const next = position && destination(event, position, grid);
    if (!next || event.altKey || event.metaKey) return;
    event.preventDefault();
    grid[next[0]][next[1]].focus();
  });
}

/**
 * @param {KeyboardEvent} event
 * @param {[number, number]} position
 * @param {HTMLElement[][]} grid
 * @returns {[number, number] | null}
 */
function destination({ key, ctrlKey, target }, [row, column], grid) {
  const last = grid.length - 1;
  if (key === "Home") return ctrlKey ? [0, 0] : [row, 0];
  if (key === "End") return ctrlKey ? [last, grid[last].length - 1] : [row, grid[row].length - 1];
  if (!(key in STEPS)) return null;
  const [down, right] = STEPS[key];
  const next = getComputedStyle(/** @type {Element} */ (target)).direction === "rtl" ? -right : right;
  const y = Math.max(0, Math.min(last, row + down));
  return [y, Math.max(0, Math.min(grid[y].length - 1, column + next))];
}
