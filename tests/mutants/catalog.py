"""All mutants. Each was once believed to be found by some suite; one that survives is a missing test."""

from tests.mutants import edges, plugins, reconciler, shared

MUTANTS = (*reconciler.MUTANTS, *plugins.MUTANTS, *shared.MUTANTS, *edges.MUTANTS)
