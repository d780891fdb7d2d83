"""The index of free volumes finds the same volumes as a scan of all of them."""

import random
from collections.abc import Callable
from typing import Any

from bowline.api.meta import Object
from bowline.api.selectors import Node
from bowline.plugins.volume_binding.matching import FreeVolumes, find_volume
from bowline.plugins.volume_binding.tests.builders import NODE, claim, raw_volume, reference, volume
from bowline.plugins.volume_binding.volumes import Volume, read_volume


def cache_entry(source: Volume) -> Object:
    """The fields that ``transform_volume`` keeps and the index reads."""
    return {"metadata": {"name": source.name}, "volume": source}


def names_for(index: FreeVolumes, *claims: str, node: Node = NODE) -> set[str]:
    return {candidate.name for candidate in index.candidates([claim(name) for name in claims or ("data",)], node)}


def index_of(*volumes: Volume) -> FreeVolumes:
    index = FreeVolumes()
    for entry in volumes:
        index.on_change(None, cache_entry(entry))
    return index


def test_candidates_are_those_of_the_claims_kind_and_node_and_those_kept_for_it() -> None:
    index = index_of(
        volume("here", node="node-0"),
        volume("elsewhere", node="node-1"),
        volume("anywhere"),
        volume("other-class", storageClassName="other"),
        volume("kept", node="node-1", claimRef=reference()),
        volume("kept-for-another", claimRef=reference("another")),
    )
    assert names_for(index) == {"here", "anywhere", "kept"}
    assert names_for(index, "data", "another") == {"here", "anywhere", "kept", "kept-for-another"}
    assert names_for(index, "third", node=Node("node-1", {"kubernetes.io/hostname": "node-1"})) == {
        "elsewhere",
        "anywhere",
    }
    assert names_for(index, "third", node=Node("bare")) == {"anywhere"}


def test_a_volume_is_indexed_by_its_last_event() -> None:
    before, after = volume("v", node="node-0"), volume("v", node="node-0", claimRef=reference("another"))
    index = index_of(before)
    index.on_change(cache_entry(before), cache_entry(after))
    assert names_for(index) == set()
    assert names_for(index, "another") == {"v"}
    index.on_change(cache_entry(after), None)
    index.on_change(cache_entry(after), None)
    assert names_for(index, "another") == set()


def some_volume(rng: random.Random, number: int) -> Volume:
    spec: dict[str, Any] = {"size": f"{rng.randint(1, 3)}Gi", "node": rng.choice(["", "node-0", "node-1"])}
    if rng.random() < 0.2:
        spec["claimRef"] = reference(rng.choice(["data", "another"]), uid=rng.choice(["", "uid-data", "old"]))
    if rng.random() < 0.2:
        spec["storageClassName"] = "other"
    if rng.random() < 0.2:
        spec["phase"] = "Pending"
    raw = raw_volume(f"v{number}", **spec)
    if rng.random() < 0.2:
        terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
        raw["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": rng.sample(terms, rng.randint(0, 2))}}
    return read_volume(raw)


def test_the_choice_is_the_one_among_all_volumes() -> None:
    for seed in range(200):
        rng = random.Random(seed)  # noqa: S311 - no security purpose
        volumes = [some_volume(rng, number) for number in range(rng.randint(0, 12))]
        taken = {entry.name for entry in volumes if rng.random() < 0.2}
        new_claim = claim(size=f"{rng.randint(1, 3)}Gi")
        candidates = index_of(*volumes).candidates([new_claim], NODE)
        among_all, among_some = (
            find_volume(new_claim, NODE, some, is_taken(taken)) for some in (volumes, candidates)
        )
        assert among_some.volume == among_all.volume, seed
        # To wait for, any of those that are not available yet is valid.
        assert (among_some.soon is None) == (among_all.soon is None), seed


def is_taken(names: set[str]) -> Callable[[Volume], bool]:
    return lambda volume: volume.name in names
