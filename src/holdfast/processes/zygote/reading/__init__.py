"""Reading the beginning of a program, without running it: what it does before and while it imports.

places            where modules are, and whose they are
prefix            the statements, up to the first one whose effect is not known
side_effect_free  the tables: calls and decorators that no later import can notice
constant_folding  constants made of constants
variables         what the program may set anywhere, by its text
foreseen          what packages import once something of them is used
"""
