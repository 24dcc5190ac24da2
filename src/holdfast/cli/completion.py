"""Shell completion of `holdfast`: its commands, and the options of each.

The scripts are made from the table of options and the parsers of verbs, so they are complete, and
name no file of ours.
"""

from __future__ import annotations

from importlib import import_module

from holdfast.cli.main import VERBS
from holdfast.cli.table import OPTIONS
from holdfast.cli.verbs import Verb

BASH = """\
_holdfast() {
  local word=${COMP_WORDS[COMP_CWORD]}
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "COMMANDS" -- "$word"))
  elif [[ ${COMP_WORDS[1]} == run && $word == -* ]]; then
    COMPREPLY=($(compgen -W "OPTIONS" -- "$word"))
  elif [[ $word == -* ]]; then
    case ${COMP_WORDS[1]} in
BASH_VERBS
    esac
  fi
}
complete -o bashdefault -o default -F _holdfast holdfast
"""
ZSH = """\
autoload -Uz compinit bashcompinit
(( $+functions[compdef] )) || compinit
bashcompinit
"""
"""Before the script for bash, which zsh then reads."""
TCSH = """\
complete holdfast 'p/1/(COMMANDS)/' 'c/--/(NAMES)/' 'p/*/f/'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH + BASH, "tcsh": TCSH}


def script(shell: str) -> str:
    """The script for a shell, which reads it at its start."""
    names = [option.name for option in OPTIONS] + ["help"]
    short = [f"-{option.short}" for option in OPTIONS if option.short] + ["-h"]
    words = {
        "COMMANDS": " ".join(["run", *VERBS]),
        "OPTIONS": " ".join([*(f"--{name}" for name in names), *short]),
        "NAMES": " ".join(names),
        "BASH_VERBS": _cases(),
    }
    text = SCRIPTS[shell]
    for word, meant in words.items():
        text = text.replace(word, meant)
    return text


def _cases() -> str:
    """A line for each verb: its options."""
    lines = []
    for name, module in VERBS.items():
        verb = getattr(import_module(f"holdfast.cli.{module}"), name)
        if isinstance(verb, Verb):
            options = " ".join(verb.parser.shown_options)
            lines.append(f'      {name}) COMPREPLY=($(compgen -W "{options}" -- "$word")) ;;')
    return "\n".join(lines)
