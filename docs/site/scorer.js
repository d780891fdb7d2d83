// What a user searches comes before what those read who write plugins or change Bowline.
const INTERNAL = /docs\/(architecture|plugins|testing)/;
var Scorer = {
  score: ([page, , , , score]) => INTERNAL.test(page) ? score / 5 : score,
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
