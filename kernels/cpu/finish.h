// uint8 pixels to normalized numbers, erased and mixed where that is asked for, in one pass over memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpupipe {

enum class Dtype : int32_t { float32 = 0, float16 = 1, bfloat16 = 2, uint8 = 3 };

inline size_t bytes_of(Dtype dtype) { return dtype == Dtype::float32 ? 4 : dtype == Dtype::uint8 ? 1 : 2; }

struct FinishSpec {
  Dtype dtype;
  bool channels_last;
  const float* offset;  // per channel: a value becomes (value - offset) * scale, rounded once to dtype; uint8 stays
  const float* scale;
  const void* table;    // (3, 256) of dtype: what each value becomes
  const float* exact;   // the same in float32
  size_t plane = 0;     // pixels from one plane to the next; 0: those of the image
};

inline size_t plane_of(const FinishSpec& spec, size_t pixels) { return spec.plane == 0 ? pixels : spec.plane; }

// One image: `pixels` interleaved pixels of 3 bytes to three planes, or to interleaved numbers.
using FinishImage = void (*)(const FinishSpec& spec, const uint8_t* in, size_t pixels, void* out);

// Two images, own and other, to one.
using MixImages = void (*)(const FinishSpec& spec, float weight, const uint8_t* own, const uint8_t* other,
                           size_t pixels, void* out);

// What the finish of a batch is made of, in variants for what the CPU can do. All give the same bits.
struct FinishKernels {
  FinishImage image;
  // The same for weight * own + (1 - weight) * other, each product and the sum rounded in float32. Not for uint8.
  MixImages mixed;
  // Numbers to dtype, which is not uint8.
  void (*store)(Dtype dtype, const float* numbers, size_t count, void* out);
  // Noise of kNoiseRun pixels from `first` on, see noise.h: three planes.
  void (*noise)(const uint32_t key[2], uint32_t first, float* out);
};

// By the name of a variant of Passes; null for an unknown one.
const FinishKernels* find_finish(const char* name);

extern const FinishKernels kPortableFinish;
// Null where the CPU lacks AVX2 or F16C, or is not x86-64.
const FinishKernels* avx2_finish();

// What the vectors leave over: starts at pixel `begin` of the image, or at number `begin`.
void finish_rest(const FinishSpec& spec, const uint8_t* in, size_t begin, size_t pixels, void* out);
void mixed_rest(const FinishSpec& spec, float weight, const uint8_t* own, const uint8_t* other, size_t begin,
                size_t pixels, void* out);
void store_rest(Dtype dtype, const float* numbers, size_t begin, size_t count, void* out);

}  // namespace gpupipe
