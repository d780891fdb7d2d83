// A short name in a table is one word; longer ones break after a dot, a slash or an underscore. On a phone a row of a table is a block, without the table's head: each cell gets the name of its column.
document.addEventListener("DOMContentLoaded", () => {
  for (const code of document.querySelectorAll("table.docutils code")) {
    code.classList.toggle("word", code.textContent.length <= 24);
    for (const text of code.textContent.length > 24 ? code.querySelectorAll(".pre") : [])
      text.innerHTML = text.innerHTML.replace(/[._/](?=\w)/g, "$&<wbr>");
  }
  for (const table of document.querySelectorAll("table.docutils")) {
    const names = [...table.querySelectorAll("thead th")].map(cell => cell.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.cells].forEach((cell, index) => {
        if (index && names[index]) cell.dataset.column = names[index];
        cell.classList.toggle("without-text", !cell.textContent.trim());
      });
  }
});
