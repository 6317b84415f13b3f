// uint8 pixels to normalized numbers, in one pass over memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpupipe {

enum class Dtype : int32_t { float32 = 0, float16 = 1, bfloat16 = 2, uint8 = 3 };

struct FinishSpec {
  Dtype dtype;
  bool channels_last;
  const float* offset;  // per channel: a value becomes (value - offset) * scale, rounded once to dtype; uint8 stays
  const float* scale;
  const void* table;    // (3, 256) of dtype: what each value becomes
};

// One image: `pixels` interleaved pixels of 3 bytes to three planes, or to interleaved numbers.
using FinishImage = void (*)(const FinishSpec& spec, const uint8_t* in, size_t pixels, void* out);

// By the name of a variant of Passes; null for an unknown one.
FinishImage find_finish(const char* name);

void finish_portable(const FinishSpec& spec, const uint8_t* in, size_t pixels, void* out);
// Starts at pixel `begin` of the image; what the vectors leave over.
void finish_rest(const FinishSpec& spec, const uint8_t* in, size_t begin, size_t pixels, void* out);
// Null where the CPU lacks AVX2 or F16C, or is not x86-64.
FinishImage avx2_finish();

}  // namespace gpupipe
