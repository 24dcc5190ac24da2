"""The job in a browser: an adapter with no state and no rules of its own.

Facts are asked of the job (`core.protocol.requests`) or read from a journal; events are those of
`observe.story`. Here they become the few messages that the page understands.

    site         the paths, the page's files, and the servers of both kinds of dashboard
    auth         the key, and the names under which requests are answered
    wire         the messages to the page; `frontend/src/model.ts` is its mirror
    pages        a page's content, and what each open page was told of it
    views        from answers, or a report, to that content
    feed         asks a running job while a page is open (`source`)
    api, logs    commands, stacks and lines of workers
    report_file  a job's report as one file
"""
