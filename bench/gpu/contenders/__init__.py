"""Loaders that the parts compare besides those of `gpupipe bench`: each a class of the shape of
`gpupipe.tools.benchmark.contenders.Contender`, named as "gpu.contenders.FILE:CLASS?option=value"."""
