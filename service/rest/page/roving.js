const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/**
 * Make a grid of elements one stop of the Tab key, with the arrow keys, Home and End moving inside it (with Ctrl: to
 * the grid's corners).
 *
 * @param {HTMLElement} root what holds them all
 * @param {HTMLElement[][]} grid rows of the elements that take the focus
 * @param {[number, number]} [start] row and column of the stop
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
    const place = places.get(event.target);
    const next = place && destination(event, place, grid);
    if (!next || event.altKey || event.metaKey) return;
    event.preventDefault();
    grid[next[0]][next[1]].focus();
  });
}

/**
 * @param {KeyboardEvent} event
 * @param {[number, number]} place
 * @param {HTMLElement[][]} grid
 * @returns {[number, number] | null}
 */
function destination({ key, ctrlKey }, [row, column], grid) {
  const last = grid.length - 1;
  if (key === "Home") return ctrlKey ? [0, 0] : [row, 0];
  if (key === "End") return ctrlKey ? [last, grid[last].length - 1] : [row, grid[row].length - 1];
  if (!(key in STEPS)) return null;
  const y = Math.max(0, Math.min(last, row + STEPS[key][0]));
  return [y, Math.max(0, Math.min(grid[y].length - 1, column + STEPS[key][1]))];
}
