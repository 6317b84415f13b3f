"""Loaders that the parts compare besides those of `gpupipe bench`: each a class of the shape of
`gpupipe.benchmark.contenders.base.Contender`, named as "gpu.contenders.FILE:CLASS?option=value"."""
