#include "erase_mix.h"

#include <algorithm>
#include <initializer_list>
#include <cstring>

#include "noise.h"

namespace gpupipe {
namespace {

// Pixels of a line that are worked on at once, in buffers that stay in the nearest cache.
constexpr int kRun = 256;
using Buffer = float[3 * kRun];

struct Box {
  int top, left, height, width;
};

struct Run {
  int y, x, count;
};

Box box_of(const int32_t* boxes, int row) {
  if (boxes == nullptr) return {0, 0, 0, 0};
  const int32_t* at = boxes + static_cast<size_t>(row) * 4;
  return {at[0], at[1], at[2], at[3]};
}

template <typename Work>
void each_run(const Box& box, const Work& work) {
  const int right = box.left + box.width;
  for (int y = box.top; y < box.top + box.height; ++y) {
    for (int x = box.left; x < right; x += kRun) work(Run{y, x, std::min(kRun, right - x)});
  }
}

// One row of the batch, run by run, through float32 numbers laid out as in `out`: planes or interleaved.
class Row {
 public:
  Row(const FinishBatch& batch, const FinishKernels& kernels, int row)
      : batch_(batch),
        kernels_(kernels),
        row_(row),
        width_(batch.sizes == nullptr ? batch.width : batch.sizes[row * 2 + 1]),
        erased_(box_of(batch.erase_boxes, row)) {
    exact_ = batch.spec;
    exact_.dtype = Dtype::float32;
    exact_.table = exact_.exact;
  }

  const uint8_t* pixels() const { return batch_.sizes == nullptr ? batch_.in + row_ * area() * 3 : batch_.rows[row_]; }

  const Box& erased() const { return erased_; }

  // Its numbers before they are mixed.
  void make(const Run& run, float* numbers) const {
    int begin = 0, end = 0;
    if (run.y >= erased_.top && run.y < erased_.top + erased_.height) {
      begin = std::max(run.x, erased_.left) - run.x;
      end = std::min(run.x + run.count, erased_.left + erased_.width) - run.x;
    }
    if (end - begin < run.count) {
      kernels_.image(exact_, pixels() + first(run) * 3, static_cast<size_t>(run.count), numbers);
    }
    if (begin < end) erase(run, begin, end, numbers);
  }

  // Calls work(from, count, to) for each stretch of numbers of a run that lies together in this row of `out`.
  template <typename Work>
  void each_stretch(const Run& run, const Work& work) const {
    const size_t count = static_cast<size_t>(run.count), bytes = bytes_of(batch_.spec.dtype);
    uint8_t* to = batch_.out + row_ * area() * 3 * bytes;
    const size_t first = static_cast<size_t>(run.y) * batch_.width + run.x;
    if (batch_.spec.channels_last) return work(0, count * 3, to + first * 3 * bytes);
    for (size_t c = 0; c < 3; ++c) work(c * count, count, to + (c * area() + first) * bytes);
  }

 private:
  size_t area() const { return static_cast<size_t>(batch_.height) * batch_.width; }
  size_t first(const Run& run) const { return static_cast<size_t>(run.y) * width_ + run.x; }

  void erase(const Run& run, int begin, int end, float* numbers) const {
    float planes[3 * kNoiseRun];
    if (batch_.erase_value != nullptr) {
      for (int i = 0; i < 3 * kNoiseRun; ++i) planes[i] = batch_.erase_value[i / kNoiseRun];
    }
    for (int at = begin; at < end; at += kNoiseRun) {
      if (batch_.erase_value == nullptr) {
        kernels_.noise(batch_.erase_keys + row_ * 2, static_cast<uint32_t>(first(run) + at), planes);
      }
      put(run, at, std::min(kNoiseRun, end - at), planes, numbers);
    }
  }

  void put(const Run& run, int at, int count, const float* planes, float* numbers) const {
    if (!batch_.spec.channels_last) {
      for (int c = 0; c < 3; ++c) std::copy_n(planes + c * kNoiseRun, count, numbers + c * run.count + at);
      return;
    }
    for (int i = 0; i < count; ++i) {
      for (int c = 0; c < 3; ++c) numbers[(at + i) * 3 + c] = planes[c * kNoiseRun + i];
    }
  }

  const FinishBatch& batch_;
  const FinishKernels& kernels_;
  const size_t row_;
  const int width_;  // of the image
  FinishSpec exact_;
  const Box erased_;
};

template <typename T>
void fill_as(const void* number, size_t count, uint8_t* to) {
  T value;
  std::memcpy(&value, number, sizeof value);
  std::fill_n(reinterpret_cast<T*>(to), count, value);
}

void fill(const void* number, size_t bytes, size_t count, uint8_t* to) {
  if (bytes == 4) return fill_as<uint32_t>(number, count, to);
  if (bytes == 2) return fill_as<uint16_t>(number, count, to);
  fill_as<uint8_t>(number, count, to);
}

// An image of its own size, line by line, and what surrounds it.
void finish_padded(const FinishBatch& batch, const FinishKernels& kernels, const uint8_t* pixels, int row, uint8_t* out) {
  FinishSpec spec = batch.spec;
  const size_t width = batch.width, area = batch.height * width, tall = batch.sizes[row * 2];
  const size_t wide = batch.sizes[row * 2 + 1], bytes = bytes_of(spec.dtype);
  const size_t planes = spec.channels_last ? 1 : 3, each = spec.channels_last ? 3 : 1;  // numbers of a pixel in a plane
  spec.plane = area;
  for (size_t y = 0; y < tall; ++y) kernels.image(spec, pixels + y * wide * 3, wide, out + y * width * each * bytes);
  for (size_t c = 0; c < planes; ++c) {
    uint8_t* const plane = out + c * area * bytes;
    for (size_t y = 0; y < tall; ++y)
      fill(batch.around, bytes, (width - wide) * each, plane + (y * width + wide) * each * bytes);
    fill(batch.around, bytes, (area - tall * width) * each, plane + tall * width * each * bytes);
  }
}

}  // namespace

void finish_row(const FinishBatch& batch, const FinishKernels& kernels, int row) {
  const FinishSpec& spec = batch.spec;
  const size_t pixels = static_cast<size_t>(batch.height) * batch.width;
  uint8_t* const out = batch.out + row * pixels * 3 * bytes_of(spec.dtype);
  const int partner = batch.partners == nullptr ? row : batch.partners[row];
  const float weight = partner == row ? 1 : batch.weights[row];
  const Row own(batch, kernels, row), other(batch, kernels, partner);
  Buffer numbers, others;
  const auto write = [&](const Run& run) {
    own.each_stretch(run, [&](size_t at, size_t count, void* to) { kernels.store(spec.dtype, numbers + at, count, to); });
  };
  // All of the image at the vectors' pace, then what is erased or from the partner over it.
  if (weight == 1) {
    if (batch.sizes != nullptr) finish_padded(batch, kernels, own.pixels(), row, out);
    else kernels.image(spec, own.pixels(), pixels, out);
    each_run(own.erased(), [&](const Run& run) {
      own.make(run, numbers);
      write(run);
    });
  } else {
    kernels.mixed(spec, weight, own.pixels(), other.pixels(), pixels, out);
    for (const Row* erased : {&own, &other}) {
      each_run(erased->erased(), [&](const Run& run) {
        own.make(run, numbers);
        other.make(run, others);
        for (int i = 0; i < 3 * run.count; ++i) numbers[i] = weight * numbers[i] + (1 - weight) * others[i];
        write(run);
      });
    }
  }
  if (partner == row) return;
  each_run(box_of(batch.mix_boxes, row), [&](const Run& run) {
    other.make(run, numbers);
    write(run);
  });
}

}  // namespace gpupipe
