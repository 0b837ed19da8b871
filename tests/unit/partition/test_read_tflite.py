"""TFLite files as graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from tests.models.legal_cuts import prefix_cuts
from tests.unit.partition.damage import outcome
from tests.unit.tflite_for_tests import Op, T, add, linear, mul, save
from tests.unit.tflite_graphs_for_tests import mobile
from upwell.shared.errors import ConfigError
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.model_graph import Tensor
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.read_tflite import tensor_names

CODES, KINDS = schema.BuiltinOperator, schema.BuiltinOptions


def changed(path: Path, change: Callable[[Any], None]) -> Path:
    """The model with something done to its objects."""
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    change(model)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_graph(path)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert "\n" not in problem.message
    return problem.message


def members(path: Path) -> list[tuple[int, ...]]:
    return [node.members for node in contract(read_graph(path)).nodes]


def relu(x: int, y: int) -> Op:
    return Op(CODES.RELU, (x,), (y,))


def test_a_network(tmp_path: Path) -> None:
    graph = read_graph(mobile(tmp_path, blocks=2))
    assert (graph.inputs, graph.outputs) == (("t0",), ("t44",))
    first, second = graph.nodes[:2]
    assert (first.name, first.op, first.inputs, first.outputs) == ("CONV_2D_0", "CONV_2D", ("t0",), ("t3",))
    assert first.work == 64 * 8 * 3 * 3 * 3
    assert second.work == 64 * 8
    assert graph.nodes[4].work == 64 * 16 * 3 * 3  # by channel
    assert graph.nodes[21].work == 8 * 5
    assert graph.tensors["t3"] == Tensor("t3", "FP32", (1, 8, 8, 8))
    assert contract(graph) == graph  # its kernels have their activations in them where they can
    assert prefix_cuts(graph) == list(range(1, 23))


def test_constants_are_no_part_of_it(tmp_path: Path) -> None:
    """Nor what is computed from them (weights kept as FP16), nor optional inputs that are absent."""
    half = np.ones((3, 4), np.float16)
    options = schema.FullyConnectedOptionsT()
    tensors = [T("x", (1, 4)), T("half", (3, 4), "FP16", half), T("w", (3, 4)), T("y", (1, 3))]
    operators = [
        Op(CODES.DEQUANTIZE, (1,), (2,)),
        Op(CODES.FULLY_CONNECTED, (0, 2, -1), (3,), KINDS.FullyConnectedOptions, options),
    ]
    graph = read_graph(save(tmp_path / "m.tflite", tensors, operators, [0], [3]))
    assert [(node.inputs, node.is_free) for node in graph.nodes] == [((), True), (("x",), False)]
    assert graph.nodes[1].work == 12
    assert members(tmp_path / "m.tflite") == [(1,)]


def test_quantized_tensors_are_what_is_read(tmp_path: Path) -> None:
    names = ["x", "q", "f", "g", "q2", "y"]
    tensors = [T(name, (1, 4), "INT8" if "q" in name else "FP32", quantization=(0.1, 3)) for name in names]
    operators = [
        Op(CODES.QUANTIZE, (0,), (1,)), Op(CODES.DEQUANTIZE, (1,), (2,)), relu(2, 3), Op(CODES.QUANTIZE, (3,), (4,)),
        Op(CODES.DEQUANTIZE, (4,), (5,)),
    ]  # fmt: skip
    made = contract(read_graph(save(tmp_path / "m.tflite", tensors, operators, [0], [5])))
    assert [(node.inputs, node.outputs, node.members) for node in made.nodes] == [
        (("x",), ("q",), (0,)), (("q",), ("y",), (2, 3, 4)),
    ]  # fmt: skip
    assert made.crossing({0}) == ("q",)
    assert made.tensors["q"].size_bytes() == 4


def test_names_that_are_missing_or_not_alone_get_the_index_of_the_tensor(tmp_path: Path) -> None:
    names = ["a", "b", "a", "", "", "b#6", "b", "c"]
    assert tensor_names(names) == ("a#0", "b#1", "a#2", "#3", "#4", "b#6", "b#6#", "c")
    tensors = [T("same", (1, 4)), T("same", (1, 4)), T("", (1, 4))]
    graph = read_graph(save(tmp_path / "m.tflite", tensors, [relu(0, 1), relu(1, 2)], [0], [2]))
    assert [(node.inputs, node.outputs) for node in graph.nodes] == [(("same#0",), ("same#1",)), (("same#1",), ("#2",))]
    assert (graph.inputs, graph.outputs) == (("same#0",), ("#2",))


def test_rows_that_vary_are_counted_where_the_file_tells(tmp_path: Path) -> None:
    """Its shapes are those for one row, so a tensor of 49 windows per row has 49 there."""
    reshape = schema.ReshapeOptionsT()
    tensors = [T("x", (-1, 49, 4)), T("to", (2,), "INT32", np.array([-1, 4], np.int32)), T("w", (-49, 4)),
               T("turned", (4, -49)), T("by", (2,), "INT32", np.array([1, 0], np.int32))]  # fmt: skip
    operators = [
        Op(CODES.RESHAPE, (0, 1), (2,), KINDS.ReshapeOptions, reshape),
        Op(CODES.TRANSPOSE, (2, 4), (3,), KINDS.TransposeOptions, schema.TransposeOptionsT()),
    ]
    path = save(tmp_path / "m.tflite", tensors, operators, [0], [3])

    def open_windows(model: Any) -> None:
        model.subgraphs[0].tensors[2].shapeSignature = [-1, 4]
        model.subgraphs[0].tensors[3].shapeSignature = [4, -1]

    graph = read_graph(changed(path, open_windows))
    assert graph.tensors["x"].shape == ("batch", 49, 4)
    assert graph.tensors["w"].shape == ("49*batch", 4)
    assert graph.tensors["turned"].shape == (4, "49*batch")
    assert graph.tensors["w"].size_bytes({"batch": 2}) == 2 * 49 * 4 * 4


def test_what_varies_with_the_data_cannot_cross(tmp_path: Path) -> None:
    tensors = [T("x", (-1,), "BOOL"), T("where", (-1, 1), "INT64"), T("y", (-1, 1), "INT64"), T("z", (-1,), "BOOL")]
    operators = [Op(CODES.WHERE, (0,), (1,)), relu(1, 2), Op(CODES.LOGICAL_NOT, (0,), (3,))]
    graph = read_graph(save(tmp_path / "m.tflite", tensors, operators, [0], [2, 3]))
    shapes = {name: tensor.shape for name, tensor in graph.tensors.items()}
    assert shapes == {"x": ("batch",), "where": None, "y": None, "z": ("batch",)}
    assert members(tmp_path / "m.tflite") == [(0, 1), (2,)]


def test_what_varies_without_the_rows_or_beside_them_cannot_cross(tmp_path: Path) -> None:
    tensors = [T("x", (1, -1)), T("h", (1, -1)), T("y", (1, -1))]
    graph = read_graph(save(tmp_path / "m.tflite", tensors, [relu(0, 1), relu(1, 2)], [0], [2]))
    assert [graph.tensors[name].shape for name in ("x", "h", "y")] == [(1, "x[1]"), None, None]


def test_a_tensor_of_which_the_file_does_not_tell_the_rank_cannot_cross(tmp_path: Path) -> None:
    tensors = [T("x", (4,)), T("h", ()), T("y", (4,))]
    path = save(tmp_path / "m.tflite", tensors, [relu(0, 1), relu(1, 2)], [0], [2])
    assert members(path) == [(0, 1)]

    def tell(model: Any) -> None:
        model.subgraphs[0].tensors[1].hasRank = True

    assert members(changed(path, tell)) == [(0,), (1,)]


def variable(name: str, handle: int) -> Op:
    options = schema.VarHandleOptionsT()
    options.container, options.sharedName = "", name
    return Op(CODES.VAR_HANDLE, (), (handle,), KINDS.VarHandleOptions, options)


def counting(folder: Path) -> Path:
    """`y` = -x plus the sum of all x before, which two variables hold by turns; `z` has nothing to do with them."""
    tensors = [T("x", (4,)), T("h1", ()), T("old", (4,)), T("new", (4,)), T("minus", (4,)), T("h2", ()),
               T("read", (4,)), T("y", (4,)), T("z", (4,)), T("again", ())]  # fmt: skip
    operators = [
        variable("sum", 1),
        Op(CODES.READ_VARIABLE, (1,), (2,)),
        Op(CODES.NEG, (0,), (4,)),
        add(2, 0, 3),
        variable("sum", 9),
        Op(CODES.ASSIGN_VARIABLE, (9, 3), ()),
        variable("other", 5),
        Op(CODES.READ_VARIABLE, (5,), (6,)),
        add(6, 4, 7),
        Op(CODES.ASSIGN_VARIABLE, (5, 7), ()),
        relu(0, 8),
    ]
    path = save(folder / "counting.tflite", tensors, operators, [0], [7, 8])

    def handles(model: Any) -> None:
        for at in (1, 5, 9):
            model.subgraphs[0].tensors[at].type = schema.TensorType.RESOURCE
            model.subgraphs[0].tensors[at].hasRank = True

    return changed(path, handles)


def test_all_that_use_a_variable_stay_together_by_whatever_handle(tmp_path: Path) -> None:
    """What lies between reading and assigning it is among them; another variable is another group."""
    assert members(counting(tmp_path)) == [(0, 1, 3, 4, 5), (2,), (6, 7, 8, 9), (10,)]


def packed(operator: Any) -> Any:
    """A copy of an operator."""
    builder = flatbuffers.Builder(256)
    builder.Finish(operator.Pack(builder))
    return schema.OperatorT.InitFromPackedBuf(bytes(builder.Output()), 0)


def operator(model: Any, code: int, inputs: Sequence[int], outputs: Sequence[int]) -> Any:
    """A new operator for any subgraph of the model."""
    made = schema.OperatorCodeT()
    made.builtinCode, made.deprecatedBuiltinCode, made.version = code, min(code, 127), 1
    model.operatorCodes.append(made)
    new = schema.OperatorT()
    new.opcodeIndex, new.inputs, new.outputs = len(model.operatorCodes) - 1, list(inputs), list(outputs)
    return new


def subgraph(model: Any, tensors: Sequence[Any], operators: Sequence[Any], inputs: Sequence[int], output: int) -> Any:
    """A new subgraph of the model, of tensors of the first one."""
    made = schema.SubGraphT()
    made.tensors, made.operators, made.inputs, made.outputs = tensors, operators, list(inputs), [output]
    model.subgraphs.append(made)
    return made


def make_zero_once(model: Any) -> None:
    """Make both variables of `counting` zero by a subgraph that runs once."""
    main = model.subgraphs[0]
    zeros = schema.BufferT()
    zeros.data = np.zeros(16, np.uint8)
    model.buffers.append(zeros)
    value = schema.TensorT()
    value.name, value.shape, value.buffer, value.type = b"zeros", [4], len(model.buffers) - 1, 0
    handles = [packed(main.operators[at]) for at in (0, 6)]
    for at, handle in enumerate(handles):
        handle.outputs = [at]
    assigned = [operator(model, CODES.ASSIGN_VARIABLE, [at, 2], []) for at in range(2)]
    once = subgraph(model, [main.tensors[1], main.tensors[5], value], [*handles, *assigned], [], 2)
    once.outputs = []
    call = operator(model, CODES.CALL_ONCE, [], [])
    call.builtinOptionsType, call.builtinOptions = KINDS.CallOnceOptions, schema.CallOnceOptionsT()
    call.builtinOptions.initSubgraphIndex = 1
    main.operators.insert(0, call)


def test_what_makes_variables_once_is_with_them(tmp_path: Path) -> None:
    """Of both, so all that use either stay together. The model is one that runs."""
    path = changed(counting(tmp_path), make_zero_once)
    assert members(path) == [(3,), (0, 1, 2, 4, 5, 6, 7, 8, 9, 10), (11,)]
    runtime = Interpreter(model_path=str(path))
    runtime.allocate_tensors()
    given, *_ = runtime.get_input_details()
    for expected in (-1, -2, -3):
        runtime.set_tensor(given["index"], np.ones(4, np.float32))
        runtime.invoke()
        assert runtime.get_tensor(runtime.get_output_details()[0]["index"])[0] == expected


def choosing(folder: Path, then: int = 1, otherwise: int = 2) -> Path:
    """`y` = relu(x) or -relu(x), as `c` says."""
    tensors = [T("x", (4,)), T("c", (1,), "BOOL"), T("h", (4,)), T("y", (4,))]
    path = save(folder / "choosing.tflite", tensors, [relu(0, 2), relu(2, 3)], [0, 1], [3])

    def change(model: Any) -> None:
        main = model.subgraphs[0]
        for code in (CODES.ABS, CODES.NEG):
            subgraph(model, [main.tensors[2], main.tensors[3]], [operator(model, code, [0], [1])], [0], 1)
        chosen = operator(model, CODES.IF, [1, 2], [3])
        chosen.builtinOptionsType, chosen.builtinOptions = KINDS.IfOptions, schema.IfOptionsT()
        chosen.builtinOptions.thenSubgraphIndex, chosen.builtinOptions.elseSubgraphIndex = then, otherwise
        main.operators[1] = chosen

    return changed(path, change)


def test_control_flow_is_one_node(tmp_path: Path) -> None:
    path = choosing(tmp_path)
    graph = read_graph(path)
    assert [(node.op, node.inputs, node.bond) for node in graph.nodes] == [("RELU", ("x",), ""), ("IF", ("c", "h"), "")]
    runtime = Interpreter(model_path=str(path))
    runtime.allocate_tensors()
    for detail in runtime.get_input_details():
        runtime.set_tensor(detail["index"], np.ones(detail["shape"], detail["dtype"]))
    runtime.invoke()
    assert runtime.get_tensor(runtime.get_output_details()[0]["index"])[0] == 1


def test_variables_in_the_bodies_of_control_flow_tie_it_to_others(tmp_path: Path) -> None:
    """Also where a body runs itself, which no converter writes."""

    def change(model: Any) -> None:
        main = model.subgraphs[0]
        handle = packed(main.operators[0])
        chosen = operator(model, CODES.IF, [0, 4], [8])
        chosen.builtinOptionsType, chosen.builtinOptions = KINDS.IfOptions, schema.IfOptionsT()
        chosen.builtinOptions.thenSubgraphIndex = chosen.builtinOptions.elseSubgraphIndex = 1
        subgraph(model, main.tensors, [handle, packed(chosen)], [4], 8)
        main.operators[10] = chosen

    assert members(changed(counting(tmp_path), change)) == [(2,), (0, 1, 3, 4, 5, 10), (6, 7, 8, 9)]


def test_a_table_ties_those_that_use_it(tmp_path: Path) -> None:
    options = schema.HashtableOptionsT()
    options.tableId = 7
    table = (CODES.HASHTABLE, KINDS.HashtableOptions, options)
    tensors = [T("x", (4,), "INT64"), T("t1", ()), T("t2", ()), T("v", (4,)), T("n", (1,), "INT64"), T("y", (4,))]
    operators = [
        Op(table[0], (), (1,), *table[1:]),
        Op(CODES.HASHTABLE_FIND, (1, 0), (3,)),
        relu(3, 5),
        Op(table[0], (), (2,), *table[1:]),
        Op(CODES.HASHTABLE_SIZE, (2,), (4,)),
    ]
    assert members(save(tmp_path / "m.tflite", tensors, operators, [0], [4, 5])) == [(0, 1, 3, 4), (2,)]


def test_a_state_that_two_operators_have_ties_them(tmp_path: Path) -> None:
    """The state of one alone (as of an LSTM) is its own; nobody makes it, so it is no input either."""
    tensors = [T(name, (4,)) for name in ("x", "own", "shared", "a", "b", "c")]
    operators = [add(0, 1, 3), add(3, 2, 4), add(4, 2, 5)]
    path = save(tmp_path / "m.tflite", tensors, operators, [0], [5])

    def change(model: Any) -> None:
        for at in (1, 2):
            model.subgraphs[0].tensors[at].isVariable = True

    assert members(changed(path, change)) == [(0,), (1, 2)]
    assert [node.inputs for node in read_graph(path).nodes] == [("x",), ("a",), ("b",)]


def test_an_operator_that_draws_numbers_is_not_free(tmp_path: Path) -> None:
    shape = T("shape", (1,), "INT32", np.array([4], np.int32))
    tensors = [T("x", (4,)), shape, T("noise", (4,)), T("constant", (4,)), T("sum", (4,)), T("y", (4,))]
    operators = [Op(CODES.RANDOM_UNIFORM, (1,), (2,)), Op(CODES.FILL, (1, 1), (3,)), add(0, 2, 4), mul(4, 3, 5)]
    graph = read_graph(save(tmp_path / "m.tflite", tensors, operators, [0], [5]))
    assert [node.is_free for node in graph.nodes] == [False, True, False, False]
    assert graph.nodes[2].inputs == ("x", "noise")


def test_invalid_models_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    tensors, path = [T("x", (4,)), T("h", (4,)), T("y", (4,))], tmp_path / "m.tflite"
    assert "no operators" in refused(save(path, tensors, [], [0], [0]))
    assert "refers to tensor 7 but has only 3" in refused(save(path, tensors, [relu(0, 7)], [0], [2]))
    assert "refers to tensor -2" in refused(save(path, tensors, [relu(-2, 1)], [0], [2]))
    assert "tensor -1 as its input" in refused(save(path, tensors, [relu(0, 2)], [-1], [2]))
    assert "reads 'h' before it is produced" in refused(save(path, tensors, [relu(1, 2), relu(0, 1)], [0], [2]))
    assert "already exists" in refused(save(path, tensors, [relu(0, 1), relu(0, 1)], [0], [1]))
    assert "already exists" in refused(save(path, tensors, [relu(0, 0)], [0], [0]))
    assert "subgraph 9 but has only 3" in refused(choosing(tmp_path, then=9))
    assert "no options" in refused(save(path, tensors, [relu(0, 1), Op(CODES.VAR_HANDLE, (), (2,))], [0], [1]))

    def misname(model: Any) -> None:
        model.subgraphs[0].operators[0].opcodeIndex = 5

    assert "operator code 5" in refused(changed(save(path, tensors, [relu(0, 1)], [0], [1]), misname))

    def lose(model: Any) -> None:
        model.subgraphs[0].tensors[0].buffer = 9

    assert "buffer 9 but has only 1" in refused(changed(save(path, tensors, [relu(0, 1)], [0], [1]), lose))

    def mislead(model: Any) -> None:
        model.metadata = [schema.MetadataT()]
        model.metadata[0].buffer = 8

    assert "buffer 8 but has only 1" in refused(changed(save(path, tensors, [relu(0, 1)], [0], [1]), mislead))


def test_a_shape_beyond_all_floats_gives_no_work(tmp_path: Path) -> None:
    tensors = [T("x", (4,)), T("y", (99_999,) * 99)]
    (node,) = read_graph(save(tmp_path / "m.tflite", tensors, [relu(0, 1)], [0], [1])).nodes
    assert node.work == 0


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    whole = linear(tmp_path).read_bytes()
    path = tmp_path / "short.tflite"
    outcomes = set()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        outcomes.add(outcome(path))
    assert outcomes == {0}


def test_random_damage_is_refused_or_a_graph(tmp_path: Path) -> None:
    whole = choosing(tmp_path).read_bytes()
    random = np.random.default_rng(0)
    path = tmp_path / "damaged.tflite"
    outcomes = set()
    for _ in range(500):
        data = bytearray(whole)
        for at in random.integers(8, len(data), size=3):
            data[at] = random.integers(256)
        path.write_bytes(data)
        outcomes.add(outcome(path))
    assert outcomes == {0, 2}
