"""From encoded samples to uint8 batches: by C++ kernels in worker processes, by DALI, or shared out between them."""
