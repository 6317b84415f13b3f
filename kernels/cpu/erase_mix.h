// The finish of one image of a batch: normalized, a box of it erased, and mixed with another image.
#pragma once

#include <cstddef>
#include <cstdint>

#include "finish.h"

namespace gpupipe {

struct FinishBatch {
  FinishSpec spec;
  int height, width;
  const uint8_t* in;  // (count, height, width, 3), or
  const uint8_t* const* rows;  // of each image its own pixels, top left in the output, where `sizes` is not null
  const int32_t* sizes;        // (count, 2) height, width
  const void* around;          // the number, of the output's dtype, that surrounds them
  uint8_t* out;
  const int32_t* erase_boxes;  // (count, 4) top, left, height, width, inside the image; null for none
  const float* erase_value;    // (3,); null for noise
  const uint32_t* erase_keys;  // (count, 2)
  const int32_t* partners;     // (count,); null for none
  const float* weights;        // (count,)
  const int32_t* mix_boxes;    // (count, 4)
};

// Reads row `row`, and its partner's where they are mixed, and writes row `row`.
void finish_row(const FinishBatch& batch, const FinishKernels& kernels, int row);

}  // namespace gpupipe
