// A program of operations on one image. What each does is defined in kernels/augment_reference.py, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpupipe {

// kernels/operations.py
enum class Op : int32_t {
  identity = 0,
  affine_nearest = 1,
  affine_bilinear = 2,
  brightness = 3,
  contrast = 4,
  saturation = 5,
  hue = 6,
  sharpness = 7,
  posterize = 8,
  solarize = 9,
  autocontrast = 10,
  equalize = 11,
  invert = 12,
  grayscale = 13,
  gaussian_blur = 14,
  solarize_add = 15,
  affine_bicubic = 16,
  channels = 20,
  noise = 21,
  mix_begin = 22,
  mix_add = 23,
  mix_end = 24,
  hsv = 25,
  holes = 26,
  gamma = 27,
  perspective_nearest = 40,
  perspective_bilinear = 41,
  elastic_nearest = 42,
  elastic_bilinear = 43,
};

// Neither side of an image is longer: coordinates and offsets then fit what the loops compute with.
constexpr int kLongestSide = 1 << 14;

// Pixels of a row that a loop works on at a time, in arrays on the stack.
constexpr int kChunk = 256;

// Numbers that a blur works on at a time.
constexpr int kBlurBlock = 32;

// So many bytes ahead loops ask for what they change next, where they are done sooner than memory: for 224 x 224 of a
// batch tables take 42 us in place of 78, shuffles of channels 18 in place of 27, levels turned round 20 in place of 23.
constexpr size_t kAhead = 1024;

// Bytes before and after a copy that loops may read.
constexpr size_t kCopySlack = 16;

// Where an operation reads: `matrix` has six numbers, and two more for a perspective. Where there are planes of `pixels`
// numbers in rows of `width`, it is so far right, then down, in parts of the matrix's first two numbers.
struct Mapping {
  const float* matrix;
  bool perspective;
  const float* planes = nullptr;
  size_t pixels = 0, width = 0;
};

// The loops over pixels, in variants for what the CPU can do. All give the same bits. Images are `pixels` or `height`
// times `width` interleaved pixels of 3 bytes; `source` has kCopySlack bytes more on both sides.
struct AugmentLoops {
  int64_t (*gray_sum)(const uint8_t* image, size_t pixels);
  // Of each channel.
  void (*extremes)(const uint8_t* image, size_t pixels, uint8_t low[3], uint8_t high[3]);
  void (*saturation)(uint8_t* image, size_t pixels, float factor);
  void (*grayscale)(uint8_t* image, size_t pixels);
  void (*hue)(uint8_t* image, size_t pixels, float turn);
  void (*hsv)(uint8_t* image, size_t pixels, float turn, float saturation, float value);
  // total = total + share * image, or without the total if it is the `first`.
  void (*add_share)(const uint8_t* image, size_t bytes, float share, bool first, float* total);
  // `order` is one of 0 to 5, as Op.CHANNELS of kernels/operations.py numbers them.
  void (*channels)(uint8_t* image, size_t pixels, int order);
  void (*noise)(uint8_t* image, size_t pixels, float mean, float spread, const uint32_t key[2]);
  // Two planes of uniform numbers from -1 to 1.
  void (*uniform_planes)(const uint32_t key[2], size_t pixels, float* out);
  // `image` is equal to `source` and keeps its border.
  void (*sharpness)(const uint8_t* source, uint8_t* image, int height, int width, float factor);
  // `count` numbers of a row, a multiple of kBlurBlock, whose neighbours, `step` numbers apart, can be read as far as
  // `taps` of them away: weights[0] for the middle, weights[taps] for the outermost.
  void (*blur_row)(const float* middle, size_t count, const float* weights, int taps, ptrdiff_t step, float* out);
  // A part of a row: rows[0] is the middle, rows[-d] and rows[d] its neighbours, all of which can be read to a multiple
  // of kBlurBlock. The result is rounded, or not.
  void (*blur_columns)(const float* const* rows, size_t begin, size_t end, const float* weights, int taps, uint8_t* out);
  void (*sum_columns)(const float* const* rows, size_t begin, size_t end, const float* weights, int taps, float* out);
  // `outside` is where the pixel lies, in bytes from `source`, that stands for those outside.
  void (*nearest)(const uint8_t* source, uint8_t* image, int height, int width, const Mapping& map, int32_t outside);
  // The same.
  void (*bicubic)(const uint8_t* source, uint8_t* image, int height, int width, const Mapping& map, int32_t outside);
  // Of `fill` null is black.
  void (*bilinear)(const uint8_t* source, uint8_t* image, int height, int width, const Mapping& map,
                   const float* fill);
};

// What four pixels add to each pixel of a row: upper left, upper right, lower left, lower right. 0 for those outside.
struct Shares {
  int32_t top[kChunk], bottom[kChunk];  // bytes to the left one of each pair
  float share[4][kChunk], covered[kChunk];  // the last is their sum
};

const AugmentLoops& portable_augment();
// Null where the CPU lacks AVX2, or is not x86-64.
const AugmentLoops* avx2_augment();
// Only for a CPU that has AVX-512 with bytes (BW), as Passes of that name ask for.
const AugmentLoops* avx512_augment();
// By the name of a variant of Passes; null for an unknown one.
const AugmentLoops* find_augment(const char* name);

struct Step {
  Op op;
  const float* values;
  int count;  // of values
};

// Keeps its memory between images; for one thread.
class Augmenter {
 public:
  // The next step is an image's first.
  void begin() { mixing_ = false; }
  // In place. `fill` is three numbers or null. May throw std::bad_alloc.
  void apply(const AugmentLoops& loops, const Step& step, const float* fill, uint8_t* image, int height, int width);
  // Gives memory back that an unusually large image has taken.
  void trim();

 private:
  uint8_t* copied(const uint8_t* image, size_t bytes);
  // Rows of `width` times kChannels numbers, in place; `weights` are `count`, zeros behind them.
  template <int kChannels, typename Level>
  void blur(const AugmentLoops& loops, const float* weights, int count, Level* image, int height, int width);
  void mix(const AugmentLoops& loops, const Step& step, uint8_t* image, size_t bytes);
  Mapping displaced(const AugmentLoops& loops, const Step& step, int height, int width);

  std::vector<uint8_t> copy_, kept_;
  std::vector<float> exact_, padded_, planes_, total_;
  bool mixing_ = false;  // whether kept_ and total_ are this image's
  std::vector<const float*> rows_;
};

}  // namespace gpupipe
