"""The check that no load goes ahead of its flag: on kernels compiled here, some wrong on purpose, and on small IR."""

import pytest

from kernels.inspect.load_order import early_loads


@pytest.fixture(scope="module")
def planted(printed_elsewhere) -> dict[str, str]:
    """TTGIR by the kernel's name."""
    return printed_elsewhere('import runpy; runpy.run_path("tests/kernels/planted_waits.py", run_name="__main__")')


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("nested", []),
        ("visits", []),
        # Two loads before the loop, for the three stages, and the one inside it.
        ("flat", ["behind a flag read"] * 3),
        ("wait_after", ["behind a flag read"] * 3),
        ("no_wait", ["reads no flag before its 3 loads of x_desc"]),
        # The one in the loop over K; those before it are in the loop over chunks, directly around which is a wait.
        ("first_only", ["behind a flag read"]),
    ],
)
def test_planted_kernels_are_told_apart(planted, kernel, said):
    found = early_loads(planted[kernel])
    assert len(found) == len(said), found
    assert all(words in sentence for words, sentence in zip(said, found, strict=True)), found


def test_pipeliner_does_load_ahead_in_a_flat_loop(planted):
    """What the check is for. Should a Triton stop doing so, this says so."""
    load, read = "async_tma_copy_global_to_local %x_desc", "tt.atomic_rmw add, acquire, sys"
    assert planted["flat"].index(load) < planted["flat"].index(read)
    assert planted["nested"].index(read) < planted["nested"].index(load)


HEAD = "tt.func public @k(%x_desc: !tt.tensordesc<tensor<8x8xbf16>>, %w_desc: !tt.tensordesc<tensor<8x8xbf16>>) {"
WORDS = {
    "for": "%r:2 = scf.for %i = %a to %b step %c iter_args(%j = %k) -> (i32) : i32 {",
    "while": "%r = scf.while (%i = %a) : (i32) -> i32 {",
    "do": "} do {",
    "if": "%r = scf.if %a -> (i32) {",
    "else": "} else {",
    "}": '} {tt.flatten} loc("f.py":1:2)',
    "wait": "%f = tt.atomic_rmw add, acquire, sys, %p, %c, %t {n = {m = 1}} : (!tt.ptr<i32>, i32, i1) -> i32 loc(#l)",
    "cas": "%f = tt.atomic_cas acq_rel, sys, %p, %a, %b : (!tt.ptr<i32>, i32, i32) -> i32",
    "gpu": "%f = tt.atomic_rmw add, acquire, gpu, %p, %c, %t : (!tt.ptr<i32>, i32, i1) -> i32",
    "relaxed": "%f = tt.atomic_rmw add, relaxed, sys, %p, %c, %t : (!tt.ptr<i32>, i32, i1) -> i32",
    "x": "ttng.async_tma_copy_global_to_local %x_desc[%a, %b] %c, %d, %e : !tt.tensordesc<tensor<8x8xbf16>> loc(#loc)",
    "w": "ttng.async_tma_copy_global_to_local %w_desc[%a, %b] %c, %d, %e : !tt.tensordesc<tensor<8x8xbf16>> loc(#loc)",
    "other": "ttng.async_tma_copy_global_to_local %arg7[%a, %b] %c, %d, %e : !tt.tensordesc<tensor<8x8xbf16>>",
    "cp": "%l = ttg.async_copy_global_to_local %p, %s : tensor<8x8x!tt.ptr<bf16>, #b> -> <8x8xbf16>",
    "load": "%l = tt.load %p, %m : tensor<8x8x!tt.ptr<f32>, #b>",
    "scalar": "%l = tt.load %p : !tt.ptr<i32>",
    "dot": "%d = ttng.warp_group_dot %a, %b, %c {isAsync = true} : !ttg.memdesc<8x8xbf16> -> tensor<8x8xf32>",
    "reduce": '%m = "tt.reduce"(%v) <{axis = 0 : i32}> ({',
    "bb": "^bb0(%a: i32, %b: i32):",
    "})": "}) : (tensor<8xi32>) -> i32",
    "asm": r'%n = tt.elementwise_inline_asm "{ } } \"{" {constraints = "=r"} -> i32',
    "specialize": "ttg.warp_specialize(%a) attributes {warps = array<i32: 4>}",
    "default": "default {",
    "partition": "partition0(%b: i32) num_warps(4) {",
}


def ir(words: str) -> str:
    return "\n".join(["#loc = loc(unknown)", "module {", HEAD, *(WORDS[word] for word in words.split()), "}", "}"])


@pytest.mark.parametrize(
    "words",
    [
        "for wait for x dot } }",
        "for cas for x dot } }",
        "for wait x x for dot x } }",
        "for while wait do } x for dot x } }",  # it spins
        "while wait do x for dot x } }",  # a flag in a loop's condition is read before its body
        "for while do if wait } x for dot x } } }",  # a visit, and its loop over chunks
        "for wait x for dot x } wait x for dot x } }",
        "w load scalar for w wait x for dot x w } w }",  # weights, spilled sums and tables may be read at any time
        "for asm reduce bb asm }) wait asm reduce bb }) x for asm dot x } }",
    ],
)
def test_sound(words):
    assert early_loads(ir(words)) == []


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("wait for dot x }", 1),  # one wait for everything, in no loop of its own
        ("x for wait x for dot x } }", 1),
        ("for x wait x for dot x } }", 1),
        ("for for dot x } wait }", 1),
        ("for wait for wait for dot x } } x }", 1),
        ("for wait x for dot x } x }", 1),  # for the next chunk
        ("for wait dot x }", 1),
        ("for wait x dot }", 1),  # in order here, but flat
        ("wait for x for dot x } }", 2),
        ("for wait for for dot x } } }", 1),  # one wait for several chunks
        ("for if wait else x for dot x } } }", 2),
        ("for specialize default wait } partition x for dot x } } }", 2),
        ("for other wait x for dot x } }", 1),  # no argument: it may be the gathered one
    ],
)
def test_early(words, count):
    found = early_loads(ir(words))
    assert len(found) == count, found


def test_sentence_names_the_line_what_was_expected_and_the_way_out():
    assert early_loads(ir("for x wait x for dot x } }")) == [
        "may load ahead of its flag: line 5, `ttng.async_tma_copy_global_to_local %x_desc[%a, %b] %c, %d, %e`, "
        "expected behind a flag read in the same iteration of its loop, or of the one directly around that; "
        "wait in a loop over chunks and load in a loop over K inside it"
    ]


@pytest.mark.parametrize("read", ["relaxed", "gpu"])
def test_a_read_that_is_relaxed_or_of_this_gpu_alone_orders_nothing(read):
    (found,) = early_loads(ir(f"for {read} for x dot }} }}"))
    assert found.startswith("reads no flag before its 1 loads of x_desc")


def test_a_check_that_finds_no_load_says_so():
    (found,) = early_loads(ir("for wait for w dot } }"))
    assert found.startswith("loads no x_desc")


@pytest.mark.parametrize("word", ["w", "other", "cp", "load"])
def test_every_load_of_a_matrix_counts_where_the_gathered_one_cannot_be_told(word):
    text = ir(f"scalar {word} for wait for {word} dot }} }}")
    pointers = text.replace(HEAD, HEAD.replace("!tt.tensordesc<tensor<8x8xbf16>>", "!tt.ptr<bf16>"))
    for found in (early_loads(text, gathered="a_desc"), early_loads(pointers)):
        assert len(found) == 1
        assert found[0].startswith("may load ahead of its flag: line 5")
