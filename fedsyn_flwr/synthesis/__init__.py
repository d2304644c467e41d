"""Making images and features that are not anybody's.

Here, as functions of tensors: inversion (HFMDS-FL), averages (FedMix), an ACGAN (FedGAN), a feature
generator (FedGen), and the pool that images are gathered in. Not here: when and by whom; that is
the methods'. Read `inversion` first.
"""
