"""The pages: server-rendered, with small scripts of ours that need no build and no network.

frame.py       what all pages share: templates, navigation, policy, errors in HTML
static.py      stylesheets and scripts, for ever in a browser's cache by their digest
sign_in.py     an API key becomes a cookie that scripts cannot read
listing.py     /                    tasks: search, filter, pages
task.py        /task/{task}         try it, its words, versions, lineage; snippets.py has what to type
quality.py     /evaluate/{task}     its rows and mistakes, of its record or of a file; pictures.py draws them
all_tasks.py   /all                 one text through all tasks
methods.py     /methods             score against trained weights; figures.py reads folders of results
composing.py   /compose             compositions; algebra.py draws them
server.py      /server              live figures, and keys
new_task.py    /new                 a file is checked, looked at and trained on
jobs.py        /jobs, /jobs/{id}    the queue, and a job as it is trained
improve.py     /improve/{task}      rows to label, likely errors, old against new
"""
