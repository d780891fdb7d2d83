// On a phone a row of a table is a block, without the table's head: each cell gets the name of its column.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.docutils")) {
    const names = [...table.querySelectorAll("thead th")].map(cell => cell.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.cells].forEach((cell, index) => {
        if (index && names[index]) cell.dataset.column = names[index];
        cell.classList.toggle("without-text", !cell.textContent.trim());
      });
  }
});
