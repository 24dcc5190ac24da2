"""Reading a program, without running it, for what it does before and while it imports.

places       where modules are, and whose they are
values       what is known of the value of a name
constant_folding  constants made of constants
harmless     the tables: calls and decorators that no later import can notice
foreseen     what packages import once something of them is used
variables    what the program may set anywhere, by its text
steps        what was found: imports, and what the program sets before them
imports      what an import statement brings
expressions  what an expression does, and what it gives
statements   what a statement does, one after the other, until that cannot be told
"""
