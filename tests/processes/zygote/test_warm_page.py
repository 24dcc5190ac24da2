"""Every row of docs/guides/warm-start.md that says what is so has a test that says the same.

The tables of what is read are tests themselves (`test_preload_docs.py`); the rows of all
others are here, by how they begin. A row that is new, or says something else, needs one too.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "docs" / "guides" / "warm-start.md").read_text()
WARM, CALLS = "integration/warm/test_warm_{}.py", "elastic/multiprocessing/test_warm_{}.py"
PRELOAD, WORK, ENDINGS, LIKE_COLD, MODULES, NUMBERS, STREAMS, LATE, ENDS, DIFFERENCES = (
    WARM.format(name)
    for name in (
        "preload", "at_work", "endings", "is_like_cold", "modules", "numbers", "streams", "late",
        "ends", "differences",
    )
)  # fmt: skip
VARIABLES = WARM.format("variables")
FUNCTIONS, PLAN = CALLS.format("functions"), CALLS.format("plan")
STACKS = f"{DIFFERENCES}::test_what_stacks_are_asked_by_is_in_cold_workers_too"
IN_A_WORKER = f"{PRELOAD}::test_what_only_a_worker_can_import_is_left_to_each_of_them"
LEFT_OUT = f"{PRELOAD}::test_what_leaves_something_behind_is_left_out_with_the_reason"
SEES = f"{LIKE_COLD}::test_a_warm_worker_sees_what_python_shows"
WRITES = f"{WORK}::test_programs_write_the_same"
DOES = f"{WORK}::test_what_a_program_does_has_the_same_result"
SAME = f"{FUNCTIONS}::test_a_warm_worker_is_what_a_cold_one_is"

SCRIPTS = {
    # What only a worker can do.
    "reads, sets or removes `RANK`": IN_A_WORKER,
    "reads `sys.argv`": IN_A_WORKER,
    "makes a temporary folder": IN_A_WORKER,
    "imports a name that the program has a file for": IN_A_WORKER,
    # When a module is left out.
    "raises": LEFT_OUT,
    "leaves a thread running": LEFT_OUT,
    "sets a timer": LEFT_OUT,
    "leaves a child process": LEFT_OUT,
    "leaves a file, socket or device open": LEFT_OUT,
    "makes a lock or memory": LEFT_OUT,
    "keeps a copy of the environment": LEFT_OUT,
    "warns about the line that imports it": LEFT_OUT,
    "changes the working directory": LEFT_OUT,
    # What could differ, and is equal.
    "`sys.argv`, `sys.orig_argv`, `sys.flags`, `sys.path`, its": SEES,
    "`__main__`: names, order": f"{LIKE_COLD}::test_however_a_program_is_named_it_sees_the_same",
    "`__mp_main__`, `import __main__` in a preloaded": (
        f"{PRELOAD}::test_what_a_preloaded_module_does_is_done_in_each_worker"
    ),
    "exit status, `sys.exit(…)`": f"{ENDINGS}::test_exits_are_the_same",
    "files that are open at the end": f"{ENDS}::test_what_a_program_does_at_its_end_is_done",
    "unhandled exceptions": f"{ENDINGS}::test_errors_are_shown_in_the_same_way",
    "KeyboardInterrupt": f"{ENDINGS}::test_exits_are_the_same",
    "syntax errors, undecodable source": (
        f"{ENDINGS}::test_errors_of_syntax_are_shown_in_the_same_way"
    ),
    "encoding cookie": f"{ENDINGS}::test_source_is_read_in_the_same_way",
    "warnings: filters": WRITES,
    "what importing prints | kept": (
        f"{PRELOAD}::test_what_importing_prints_appears_once_in_every_worker"
    ),
    "what importing sets": f"{PRELOAD}::test_what_a_preloaded_module_does_is_done_in_each_worker",
    "standard streams, their buffers": f"{STREAMS}::test_streams_that_are_pipes_look_the_same",
    "stdin, `input()`": f"{STREAMS}::test_the_first_worker_gets_the_input_and_the_others_none",
    "open descriptors, also of children": SEES,
    "signal handlers, mask": SEES,
    "session, process group": f"{LIKE_COLD}::test_a_warm_worker_sees_what_a_cold_one_sees",
    "environment, `/proc/self/environ`": (
        f"{LIKE_COLD}::test_a_warm_worker_sees_what_a_cold_one_sees"
    ),
    "`/proc/self/cmdline`": SEES,
    "cwd, umask": SEES,
    "`random`, NumPy's": f"{NUMBERS}::test_unseeded_numbers_differ_between_ranks_and_between_runs",
    "`multiprocessing` (spawn": DOES,
    "threads: `main_thread`": f"{NUMBERS}::test_arrays_have_the_same_values",
    "`sys.modules` | nothing of ours": SEES,
    "a module beside the program": (
        f"{MODULES}::test_a_module_beside_the_program_wins_as_it_does_cold"
    ),
    "`PYTHONWARNINGS`": f"{WORK}::test_settings_of_the_interpreter_are_respected",
    # What still differs.
    "Two frames of ours": f"{WORK}::test_below_the_program_there_are_two_frames_of_ours",
    "A warning whose `stacklevel`": (
        f"{DIFFERENCES}::test_a_warning_from_beyond_the_program_names_our_file"
    ),
    "All workers of a node have one hash seed": (
        f"{DIFFERENCES}::test_all_workers_of_a_node_have_one_hash_seed"
    ),
    "Some modules of the standard library": SEES,
    "Preloaded modules were imported": (
        f"{DIFFERENCES}::test_what_a_package_takes_when_it_is_imported_is_the_same_in_all_workers"
    ),
    "A package that seeds": f"{DIFFERENCES}::test_a_seed_that_a_package_sets_does_not_hold",
    "A package that looks whether it was forked": (
        f"{DIFFERENCES}::test_who_looks_whether_it_was_forked_sees_it"
    ),
    "One function of ours": f"{LIKE_COLD}::test_a_warm_worker_sees_what_a_cold_one_sees",
    "`threading.main_thread().native_id`": (
        f"{DIFFERENCES}::test_numbers_that_were_taken_when_the_zygote_was_made_stay"
    ),
    "`gc.get_freeze_count()`": f"{DIFFERENCES}::test_what_was_preloaded_is_frozen",
    "`sitecustomize`": f"{DIFFERENCES}::test_what_sets_up_an_interpreter_ran_once_without_a_rank",
    "What workers import late is in": (
        f"{DIFFERENCES}::test_what_a_late_import_changed_in_other_modules_is_there_from_the_start"
    ),
    "What a late import takes": (
        f"{LATE}::test_behind_a_setting_of_a_module_nothing_is_imported_ahead"
    ),
    "A variable that comes from a file": (
        f"{VARIABLES}::test_a_variable_that_no_launch_has_set_before_is_known_to_the_next"
    ),
    "An allocator's own thread": (
        "stacks/test_stacks.py::test_the_result_is_the_same_warm_cold_and_under_torchrun"
    ),
    "One descriptor between 960": STACKS,
    "`faulthandler` is enabled": STACKS,
    "`sys.meta_path` begins": (
        "processes/zygote/test_import_reports.py::"
        "test_every_import_that_loads_something_is_seen_and_leaves_no_frame"
    ),
    "While importing, stdout is no terminal": (
        f"{STREAMS}::test_while_importing_there_is_no_terminal"
    ),
}
BY_HAND = {
    "`setproctitle` has no effect": "no test installs that package",
    "With `--numa-binding` and one worker": "needs a machine with several memories",
}
"""Rows that no test here can show, and why."""
OF_FUNCTIONS = {
    "`__main__`, `__mp_main__`, their names": (
        f"{FUNCTIONS}::test_the_main_module_is_imported_once_in_each_worker_and_not_run"
    ),
    "`sys.argv`, `sys.orig_argv`, `/proc/self/cmdline`": SAME,
    "what a preloaded module reads": (
        f"{FUNCTIONS}::test_what_only_a_worker_has_is_read_by_the_worker"
    ),
    "`sys.flags`, `-X`": SAME,
    "`sys.path` |": SAME,
    "working directory, umask": (
        f"{PLAN}::test_a_zygote_is_used_again_only_where_this_is_the_same"
    ),
    "environment, also": SAME,
    "`get_start_method()`": SAME,
    "queues, locks": f"{FUNCTIONS}::test_what_multiprocessing_shares_can_be_shared",
    "open descriptors, whether": SAME,
    "standard streams: buffered": SAME,
    "what importing prints | in each": f"{FUNCTIONS}::test_it_ends_in_the_same_way",
    "`random`, `uuid` |": f"{FUNCTIONS}::test_each_has_random_numbers_of_its_own",
    "value, exception": f"{FUNCTIONS}::test_it_ends_in_the_same_way",
    "session, signals": f"{FUNCTIONS}::test_nothing_is_left_of_a_caller_that_is_killed",
    "functions of the main module": f"{FUNCTIONS}::test_functions_of_own_modules_and_closures",
}


def rows(text: str) -> list[str]:
    """Of all tables but those of what is read, without their heads."""
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [row.strip("| ") for table in tables for row in table.splitlines()[2:]]


def told_of() -> list[str]:
    begins = PAGE.index("## What only a worker can do")
    return rows(PAGE[begins:])


TOLD = {**SCRIPTS, **OF_FUNCTIONS}


def test_every_row_has_its_test() -> None:
    starts = (*TOLD, *BY_HAND)
    missing = [row for row in told_of() if sum(map(row.startswith, starts)) != 1]
    assert not missing, "no test is named for:\n" + "\n".join(missing)


def test_every_test_has_its_row() -> None:
    told = told_of()
    assert not [start for start in (*TOLD, *BY_HAND) if not any(r.startswith(start) for r in told)]


def test_the_tests_are_there() -> None:
    for named in sorted(set(TOLD.values())):
        path, _, name = named.partition("::")
        tree = ast.parse((TESTS / path).read_bytes())
        assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}, named
