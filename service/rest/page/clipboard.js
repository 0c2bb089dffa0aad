const MESSAGE_MS = 4000;

/**
 * Copy the text of an element, and report it. Browsers provide no clipboard over plain HTTP from another machine: the
 * text is then selected.
 *
 * @param {HTMLElement} source
 * @param {HTMLElement} status
 */
export async function copyText(source, status) {
  const field = source instanceof HTMLInputElement ? source : null;
  try {
    await navigator.clipboard.writeText(field ? field.value : source.textContent ?? "");
    status.textContent = "Copied.";
  } catch {
    if (field) field.select();
    else getSelection()?.selectAllChildren(source);
    status.textContent = "Selected. Copy it with the menu of the browser or Ctrl+C.";
  }
  setTimeout(() => { status.textContent = ""; }, MESSAGE_MS);
}
