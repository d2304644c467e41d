"""Every method once more, written from its paper: the app must end at the same weights.

One file per method. From the app come only images, partition, initial weights and random streams
(`setting`), so that both sides see the same batches; `test_reference` holds the files to that.
Everything else a method does is written out here; where a paper leaves something open (a constant
within a logarithm, where a cosine of rates ends, what happens to buffers), the reference takes the
app's reading, so such readings are repeated here and not checked. Their author knew the
app's code: they find slips in it, not a misreading that both share.
``python -m tests.reference`` prints how far the app's final weights are from the references'. Read
`setting` and `fedavg` first.
"""
