"""The job in a browser: an adapter with no state and no rules of its own.

What is shown is asked of the job (`core.protocol.requests`) or read from a journal; what happened
is told by `observe.story`. Here it is put into the few messages that the page understands.

    guard      who may ask: the key, the names under which we answer
    page_files the page itself, as it was built from `frontend/`
    wire       what is said to the page; `frontend/src/model.ts` is its mirror
    views      from answers to what is said
    changes    what differs from what a page has heard
    dropped    journals that somebody drops onto the page
    feed       asks while somebody watches, and nothing while nobody does
    site       the paths of it all
"""
