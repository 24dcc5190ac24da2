"""Why a module is left to each worker, or all start cold: words for the console and the journal.

Standard library only: for the zygote.
"""

from __future__ import annotations

CHANGES_FOLDER = "it changes the working directory when imported"
LEAVES_CHILD = "it leaves a child process behind when imported"
LEAVES_THREAD = "it leaves a thread running when imported"
SETS_TIMER = "it sets a timer when imported"
SHARES_MEMORY = "it makes memory or a lock that processes share when imported"
COPIES_ENVIRONMENT = "it keeps a copy of the environment when imported"
WARNS_ABOUT_LINE = "it warns about the line that imports it"
PRINTS_FOR_RANK = "it prints when imported, which may depend on its rank"
SHOWS_SOMETHING = "it prints, warns or logs when imported"
MAKES_TEMPORARY_FOLDER = "it makes a temporary folder when imported"
MAKES_FOLDER_OF_PROCESS = "it makes a folder named after its process when imported"
COMMAND_LINE = "the command line"

# All workers start cold.

SHOWS_IMPORTS = "the environment asks to see every import"
HAS_THREAD = "the interpreter itself starts a thread (sitecustomize?)"
CHANGES_PATH = "a module changes sys.path when imported"


def asks(verb: str, what: str) -> str:
    """It `reads`, `sets` or `removes` what only a worker has."""
    return f"it {verb} {what} when imported"


def imports_own(module: str) -> str:
    return f"it imports {module}, of which the program has its own"


def opens(path: str) -> str:
    return f"it opens {path} when imported"


def raised(error: BaseException) -> str:
    return f"importing it raised {type(error).__name__}: {error}"


def changes(what: str) -> str:
    """It changes what belongs to the whole process (`process_state`)."""
    return f"it changes {what} when imported"


def uses_set(name: str) -> str:
    return f"it uses {name} when imported, which the program sets first"


def loads_reader(library: str) -> str:
    return f"it loads {library}, which may read what the program sets"


def loads_missing(path: str) -> str:
    return f"it loads {path} when imported, which is gone"


def hidden(module: str) -> str:
    return f"{module} beside the program hides the installed module of that name"
