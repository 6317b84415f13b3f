#include "passes.h"

namespace gpupipe {
namespace {

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

uint8_t rounded(int32_t sum) {
  const int32_t value = sum >> kWeightBits;
  return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

void prepare(const Axis&, Prepared&) {}

void horizontal(const Axis& axis, const Prepared&, const uint8_t* in, size_t in_stride, int rows, uint8_t* out,
                size_t out_stride) {
  for (int row = 0; row < rows; ++row, in += in_stride, out += out_stride) {
    for (int i = 0; i < axis.out; ++i) {
      const uint8_t* pixel = in + static_cast<size_t>(axis.first[i]) * 4;
      const int32_t* weight = &axis.weight[static_cast<size_t>(i) * axis.stride];
      int32_t sum[4] = {kHalf, kHalf, kHalf, kHalf};
      for (int j = 0; j < axis.count[i]; ++j) {
        for (int c = 0; c < 4; ++c) sum[c] += weight[j] * pixel[j * 4 + c];
      }
      for (int c = 0; c < 3; ++c) out[i * 3 + c] = rounded(sum[c]);
    }
  }
}

// In blocks of columns that stay in registers or the nearest cache, for the compiler to vectorize.
void vertical(const Axis& axis, const uint8_t* in, size_t in_stride, size_t bytes, uint8_t* out, size_t out_stride) {
  constexpr size_t kBlock = 64;
  for (int i = 0; i < axis.out; ++i, out += out_stride) {
    const uint8_t* top = in + static_cast<size_t>(axis.first[i]) * in_stride;
    const int32_t* weight = &axis.weight[static_cast<size_t>(i) * axis.stride];
    for (size_t at = 0; at < bytes; at += kBlock) {
      const size_t n = bytes - at < kBlock ? bytes - at : kBlock;
      int32_t sum[kBlock];
      for (size_t b = 0; b < n; ++b) sum[b] = kHalf;
      for (int j = 0; j < axis.count[i]; ++j) {
        const uint8_t* row = top + static_cast<size_t>(j) * in_stride + at;
        const int32_t w = weight[j];
        for (size_t b = 0; b < n; ++b) sum[b] += w * row[b];
      }
      for (size_t b = 0; b < n; ++b) out[at + b] = rounded(sum[b]);
    }
  }
}

}  // namespace

const Passes kPortablePasses = {"portable", prepare, horizontal, vertical};

}  // namespace gpupipe
