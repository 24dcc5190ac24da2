"""The job in a browser: an adapter with no state and no rules of its own.

What is shown is asked of the job (`core.protocol.requests`) or read from a journal; what happened
is told by `observe.story`. Here it is put into the few messages that the page understands.

    auth         who may ask: the key, the names under which we answer
    page_files   the page itself, as it was built from `frontend/`
    wire         what is said to the page; `frontend/src/model.ts` is its mirror
    page_state   all that a page shows, and what each page has heard of it
    views        from answers to what is said
    feed         asks while somebody watches, and nothing while nobody does
    static       a job's report as a page; `report_file` as one file
    job_list     the jobs of this machine
    site         the paths of it all
"""
