// A short name in a table is one word: only longer ones break. On a phone a row of a table is a block, without the table's head: each cell gets the name of its column.
document.addEventListener("DOMContentLoaded", () => {
  for (const code of document.querySelectorAll("table.docutils code"))
    code.classList.toggle("word", code.textContent.length <= 24);
  for (const table of document.querySelectorAll("table.docutils")) {
    const names = [...table.querySelectorAll("thead th")].map(cell => cell.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.cells].forEach((cell, index) => {
        if (index && names[index]) cell.dataset.column = names[index];
        cell.classList.toggle("without-text", !cell.textContent.trim());
      });
  }
});
