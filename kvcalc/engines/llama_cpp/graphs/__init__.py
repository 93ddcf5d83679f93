"""The compute graphs that llama.cpp builds: their tensors, how they are split over backends, and where each is stored.

`tensors` has the operations, `context` the pieces that architectures share, `layers` one entry an architecture,
`scheduler` and `allocator` the two steps that turn a graph into bytes of each device.
"""
