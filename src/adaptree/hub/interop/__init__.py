"""Tasks of other libraries: what `adapters` and `peft` save is read here, and written for them.

::

    read.py                recognise a folder, and make a task of it
    write.py               write a task as a folder of another library
    peft.py                what `peft` saves
    adapterhub.py          what `adapters` saves of an adapter and its head
    adapterhub_fusion.py   the same of AdapterFusion
    adapterhub_write.py    the files of both, from a task
    heads.py               their prediction heads, and ours
    maps.py                LoRA and IA³ beside named linear maps
    files.py               the files themselves, which anybody may have written
"""
