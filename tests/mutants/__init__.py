"""Mutants: single-line changes of execd and its wings that a test must notice. `make mutants` runs
all of them.

Two kinds:

    picked.toml     changes picked by hand, where a bug would cause harm, each with the tests that
                    must fail
    operators.py    changes made by operators, one module after another, from a fixed seed; the
                    tests that mirror the module must fail

A mutant is killed when a test fails or hangs. A mutant that no test kills survives; survivors.toml
lists the accepted survivors, each with a reason. A survivor outside of the list fails the run. A
listed mutant counts as a survivor and is not tried; ``--accepted`` tries these mutants, and fails
where one is killed. The list may only get shorter.
"""
