"""The wording of each reason for which a module is left out, or workers start cold."""

from __future__ import annotations

from holdfast.processes.zygote import reasons

WORDS = {
    reasons.CHANGES_FOLDER: "it changes the working directory when imported",
    reasons.LEAVES_CHILD: "it leaves a child process behind when imported",
    reasons.LEAVES_THREAD: "it leaves a thread running when imported",
    reasons.SETS_TIMER: "it sets a timer when imported",
    reasons.SHARES_MEMORY: "it makes memory or a lock that processes share when imported",
    reasons.COPIES_ENVIRONMENT: "it keeps a copy of the environment when imported",
    reasons.WARNS_ABOUT_LINE: "it warns about the line that imports it",
    reasons.PRINTS_FOR_RANK: "it prints when imported, which may depend on its rank",
    reasons.SHOWS_SOMETHING: "it prints, warns or logs when imported",
    reasons.MAKES_TEMPORARY_FOLDER: "it makes a temporary folder when imported",
    reasons.MAKES_FOLDER_OF_PROCESS: "it makes a folder named after its process when imported",
    reasons.SHOWS_IMPORTS: "the environment asks to see every import",
    reasons.HAS_THREAD: "the interpreter itself starts a thread (sitecustomize?)",
    reasons.CHANGES_PATH: "a module changes sys.path when imported",
    reasons.asks("sets", "RANK"): "it sets RANK when imported",
    reasons.asks("reads", reasons.COMMAND_LINE): "it reads the command line when imported",
    reasons.imports_own("a.b"): "it imports a.b, of which the program has its own",
    reasons.opens("/a/b"): "it opens /a/b when imported",
    reasons.raised(OSError("why")): "importing it raised OSError: why",
    reasons.changes("the umask"): "it changes the umask when imported",
    reasons.uses_set("HOME"): "it uses HOME when imported, which the program sets first",
    reasons.loads_reader("a.so"): "it loads a.so, which may read what the program sets",
    reasons.loads_missing("/a.so"): "it loads /a.so when imported, which is gone",
    reasons.hidden("socket"): "socket beside the program hides the installed module of that name",
}


def test_each_reason_is_worded() -> None:
    assert [said for said, wanted in WORDS.items() if said != wanted] == []
