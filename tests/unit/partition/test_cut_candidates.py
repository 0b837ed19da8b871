"""Which cuts are measured."""

from __future__ import annotations

from upwell.shared.partition.cut_candidates import Cut, cuts_of, ranked, refined
from upwell.shared.partition.model_graph import Graph, Node, Tensor, known_bytes


def chain(sizes: list[int | None], work: list[float]) -> Graph:
    """`t0` (the input) through one node after the other; tensor k has `sizes[k]` bytes per row, None: unknown."""
    tensors = {f"t{k}": Tensor(f"t{k}", "UINT8", None if n is None else ("N", n)) for k, n in enumerate(sizes)}
    nodes = tuple(Node(f"n{k}", "Op", (f"t{k}",), (f"t{k + 1}",), (k,), work=each) for k, each in enumerate(work))
    return Graph("onnx", nodes, tensors, ("t0",), (f"t{len(work)}",))


def test_cuts_are_every_prefix_with_what_crosses_and_the_share_of_work_before_it() -> None:
    cuts = cuts_of(chain([100, 50, 70, 10], [0, 300, 0]), {"N": 2})
    assert [cut.nodes for cut in cuts] == [0, 1, 2, 3]
    assert [cut.bytes for cut in cuts] == [200, 100, 140, 0]  # the model's output does not cross
    assert [cut.tensors for cut in cuts] == [("t0",), ("t1",), ("t2",), ()]
    assert [round(cut.share, 3) for cut in cuts] == [0.0, 0.03, 0.97, 1.0]  # a node without work counts a little


def test_a_cut_through_a_tensor_of_unknown_size_is_none() -> None:
    graph = chain([100, None, 70, 10], [1, 1, 1])
    assert [cut.nodes for cut in cuts_of(graph, {"N": 1})] == [0, 2, 3]
    assert [cut.nodes for cut in cuts_of(graph, {})] == [0, 3]  # nobody says how many rows
    assert known_bytes(graph.tensors["t2"], {"N": 3}) == 210
    assert known_bytes(graph.tensors["t2"], {"M": 3}) is None
    assert known_bytes(Tensor("text", "BYTES", (1,)), {}) is None


def test_a_prefix_behind_which_only_inputs_are_read_is_no_cut() -> None:
    tensors = {name: Tensor(name, "UINT8", (1,)) for name in ("a", "b", "x", "y")}
    nodes = (Node("one", "Op", ("a",), ("x",), (0,)), Node("two", "Op", ("b",), ("y",), (1,)))
    graph = Graph("onnx", nodes, tensors, ("a", "b"), ("x", "y"))
    assert [cut.nodes for cut in cuts_of(graph, {})] == [0, 2]


def cuts(*bytes_and_shares: tuple[int, float]) -> tuple[Cut, ...]:
    return tuple(Cut(nodes, (), size, share) for nodes, (size, share) in enumerate(bytes_and_shares))


def test_the_corners_of_the_hull_come_first_then_what_sends_less_than_all_before() -> None:
    start, middle = [(1000, 0.0), (2000, 0.1), (400, 0.2), (390, 0.5)], [(900, 0.6), (395, 0.65), (900, 0.7)]
    found = ranked(cuts(*start, *middle, (30, 0.9), (500, 0.95), (0, 1.0)))
    assert [cut.nodes for cut in found[:5]] == [2, 7, 3, 5, 1]
    # 2 and 7 are corners; 3 sends less than all before it, though it never pays by work; 5 less than its neighbours
    assert {cut.nodes for cut in found[5:]} == {4, 6, 8}


def test_cuts_of_one_kind_are_spread_over_the_work() -> None:
    found = ranked(cuts((10, 0), *((20, k / 10) for k in range(1, 10)), (0, 1)))
    assert [cut.nodes for cut in found[:3]] == [5, 2, 7]
    assert sorted(cut.nodes for cut in found) == list(range(1, 10))


def test_ends_alone_leave_nothing_to_choose() -> None:
    assert ranked(cuts((10, 0), (0, 1))) == ()
    assert refined({0: 0.0, 1: 5.0}, cuts((10, 0), (0, 1)), 4) == ()


def test_further_cuts_go_where_the_times_jump() -> None:
    every = cuts((9, 0), (9, 0.1), (9, 0.2), (9, 0.5), (3, 0.6), (9, 0.7), (9, 0.9), (0, 1))
    first, second = refined({0: 0.0, 2: 1.0, 6: 9.0, 7: 9.5}, every, 2)
    assert first.nodes == 4  # between 2 and 6, where it sends least
    assert second.nodes == 3  # half of the step is left below it: 3 and 5 send the same, and both halves are equal
    assert [cut.nodes for cut in refined({0: 0.0, 2: 1.0, 6: 1.1, 7: 1.2}, every, 9)] == [1, 4, 3, 5]


def test_further_cuts_of_tails_too() -> None:
    every = cuts((9, 0), (9, 0.3), (9, 0.6), (0, 1))
    assert [cut.nodes for cut in refined({0: 9.0, 1: 8.0, 3: 0.0}, every, 1)] == [2]
