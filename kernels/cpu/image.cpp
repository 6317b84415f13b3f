#include "image.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace gpupipe {
namespace {

constexpr int kStrip = 16;  // rows decoded at a time: they are still in the nearest cache when they are resized
constexpr size_t kKeep = size_t{16} << 20;

int divide_up(int value, int by) { return (value + by - 1) / by; }

bool within(int start, int length, int size) { return start >= 0 && length > 0 && start < size && length <= size - start; }

bool makes_sense(const Geometry& g, int height, int width) {
  return within(g.window.top, g.window.height, height) && within(g.window.left, g.window.width, width) &&
         within(g.anchor_top, g.out_height, g.resized_height) && within(g.anchor_left, g.out_width, g.resized_width);
}

int scale_denominator(const Geometry& g, bool fast) {
  for (int denominator = 8; fast && denominator > 1; denominator /= 2) {
    if (g.window.height / denominator >= g.resized_height && g.window.width / denominator >= g.resized_width)
      return denominator;
  }
  return 1;
}

AxisSpec axis_spec(int start, int length, int denominator, int resized, int anchor, int out) {
  const int low = start / denominator;
  const int in = divide_up(start + length, denominator) - low;
  const double begin = static_cast<double>(start) / denominator - low;
  return {in, begin, begin + static_cast<double>(length) / denominator, resized, anchor, out};
}

// How an image is stored, against upright. EXIF 2.3, tag 0x0112.
struct Turn {
  bool transposed, from_bottom, from_right;

  explicit Turn(int orientation)
      : transposed(orientation >= 5),
        from_bottom(orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7),
        from_right(orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) {}
};

// A window of the upright image as it is stored.
Box stored_box(const Box& box, const Turn& turn, int height, int width) {
  Box stored = box;
  if (turn.transposed) stored = {box.left, box.top, box.width, box.height};
  if (turn.from_bottom) stored.top = height - stored.top - stored.height;
  if (turn.from_right) stored.left = width - stored.left - stored.width;
  return stored;
}

// Turns 4-byte pixels upright. `in` has in_height rows of in_width pixels; both buffers have their strides in bytes.
void turn_upright(const uint8_t* in, size_t in_stride, int in_height, int in_width, const Turn& turn, uint8_t* out,
                  size_t out_stride) {
  for (int row = 0; row < in_height; ++row) {
    const int y = turn.from_bottom ? in_height - 1 - row : row;
    for (int column = 0; column < in_width; ++column) {
      const int x = turn.from_right ? in_width - 1 - column : column;
      uint8_t* to = turn.transposed ? out + static_cast<size_t>(x) * out_stride + static_cast<size_t>(y) * 4
                                    : out + static_cast<size_t>(y) * out_stride + static_cast<size_t>(x) * 4;
      std::memcpy(to, in + static_cast<size_t>(row) * in_stride + static_cast<size_t>(column) * 4, 4);
    }
  }
}

// Pixels of 3 bytes become pixels of 4. All but the last are copied with a byte of the next one, in one move each.
void widen(const uint8_t* in, int count, uint8_t* out) {
  for (int x = 0; x + 1 < count; ++x) std::memcpy(out + static_cast<size_t>(x) * 4, in + static_cast<size_t>(x) * 3, 4);
  if (count > 0) std::memcpy(out + static_cast<size_t>(count - 1) * 4, in + static_cast<size_t>(count - 1) * 3, 3);
}

template <typename T>
void grow(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
}

}  // namespace

void Resize::plan(const View& view, int denominator, const Passes& passes) {
  const Geometry& g = view.geometry;
  rows_.compute(axis_spec(g.window.top, g.window.height, denominator, g.resized_height, g.anchor_top, g.out_height),
                view.filter, false);
  columns_.compute(
      axis_spec(g.window.left, g.window.width, denominator, g.resized_width, g.anchor_left, g.out_width), view.filter,
      g.flip);
  region_ = {g.window.top / denominator + rows_.low, g.window.left / denominator + columns_.low, rows_.high - rows_.low,
             columns_.high - columns_.low};
  grow(middle_, (static_cast<size_t>(columns_.out) * 3 + kRowSlack) * static_cast<size_t>(region_.height));
  passes.prepare(columns_, prepared_);
}

void Resize::take(const Passes& passes, const uint8_t* in, size_t in_stride, int top, int left, int rows) {
  const int first = std::max(top, region_.top), last = std::min(top + rows, region_.top + region_.height);
  if (first >= last) return;
  const size_t stride = static_cast<size_t>(columns_.out) * 3 + kRowSlack;
  const uint8_t* from = in + static_cast<size_t>(first - top) * in_stride + static_cast<size_t>(region_.left - left) * 4;
  passes.horizontal(columns_, prepared_, from, in_stride, last - first,
                    middle_.data() + static_cast<size_t>(first - region_.top) * stride, stride);
}

void Resize::write(const Passes& passes, uint8_t* out) const {
  const size_t bytes = static_cast<size_t>(columns_.out) * 3;
  passes.vertical(rows_, middle_.data(), bytes + kRowSlack, bytes, out, bytes);
}

Box ImageMaker::plan(const std::vector<View>& views, int denominator, const Passes& passes) {
  if (resizes_.size() < views.size()) resizes_.resize(views.size());
  Box all{};
  for (size_t i = 0; i < views.size(); ++i) {
    resizes_[i].plan(views[i], denominator, passes);
    const Box& one = resizes_[i].region();
    if (i == 0) all = one;
    const int bottom = std::max(all.top + all.height, one.top + one.height);
    const int right = std::max(all.left + all.width, one.left + one.width);
    all.top = std::min(all.top, one.top), all.left = std::min(all.left, one.left);
    all.height = bottom - all.top, all.width = right - all.left;
  }
  return all;
}

int ImageMaker::decode(const Request& request, const std::vector<View>& views, const gp_limits& limits,
                       const Passes& passes, char* message) {
  if (!jpeg_) jpeg_.reset(gp_jpeg_new(1));
  if (!jpeg_) {
    std::snprintf(message, GP_MESSAGE, "libjpeg-turbo can't be set up: no memory, or not the version of its headers");
    return GP_NO_MEMORY;
  }
  gp_jpeg* jpeg = jpeg_.get();
  int code = gp_jpeg_open(jpeg, request.data, request.bytes, &limits);
  if (code == GP_OK) {
    const int height = gp_jpeg_height(jpeg), width = gp_jpeg_width(jpeg);
    if (request.height != 0 && (height != request.height || width != request.width)) {
      std::snprintf(message, GP_MESSAGE, "it is %d x %d pixels, but %d x %d were expected", width, height,
                    request.width, request.height);
      return GP_CHANGED;
    }
    const bool transposed = Turn(request.orientation).transposed;
    for (const View& view : views) {
      if (makes_sense(view.geometry, transposed ? width : height, transposed ? height : width)) continue;
      std::snprintf(message, GP_MESSAGE, "the window lies outside the image");
      return GP_CHANGED;
    }
    code = request.orientation > 1 ? decode_turned(views, request.orientation, passes)
                                   : decode_upright(views, request.fast, passes);
  }
  if (code != GP_OK) std::snprintf(message, GP_MESSAGE, "%s", gp_jpeg_message(jpeg));
  return code;
}

// Each strip of rows goes through the horizontal passes as soon as it is decoded.
int ImageMaker::decode_upright(const std::vector<View>& views, bool fast, const Passes& passes) {
  gp_jpeg* jpeg = jpeg_.get();
  int denominator = 8;
  for (const View& view : views) denominator = std::min(denominator, scale_denominator(view.geometry, fast));
  const Box all = plan(views, denominator, passes);
  int code = gp_jpeg_begin(jpeg, denominator, all.top, all.left, all.height, all.width);
  if (code != GP_OK) return code;
  const size_t stride = gp_jpeg_row_bytes(jpeg) + kRowSlack;
  grow(source_, stride * kStrip);
  for (int row = 0; row < all.height; row += kStrip) {
    const int count = std::min(kStrip, all.height - row);
    code = gp_jpeg_rows(jpeg, source_.data(), stride, count);
    if (code != GP_OK) return code;
    for (size_t i = 0; i < views.size(); ++i)
      resizes_[i].take(passes, source_.data() + gp_jpeg_row_offset(jpeg), stride, all.top + row, all.left, count);
  }
  code = gp_jpeg_end(jpeg);
  for (size_t i = 0; i < views.size() && code == GP_OK; ++i) resizes_[i].write(passes, views[i].out);
  return code;
}

// The passes round differently along rows and columns, so the pixels are turned before them.
int ImageMaker::decode_turned(const std::vector<View>& views, int orientation, const Passes& passes) {
  gp_jpeg* jpeg = jpeg_.get();
  const Box all = plan(views, 1, passes);
  const Turn turn(orientation);
  const Box stored = stored_box(all, turn, gp_jpeg_height(jpeg), gp_jpeg_width(jpeg));
  int code = gp_jpeg_begin(jpeg, 1, stored.top, stored.left, stored.height, stored.width);
  if (code != GP_OK) return code;
  const size_t in_stride = gp_jpeg_row_bytes(jpeg), out_stride = static_cast<size_t>(all.width) * 4 + kRowSlack;
  grow(source_, in_stride * static_cast<size_t>(stored.height));
  code = gp_jpeg_rows(jpeg, source_.data(), in_stride, stored.height);
  if (code == GP_OK) code = gp_jpeg_end(jpeg);
  if (code != GP_OK) return code;
  grow(turned_, out_stride * static_cast<size_t>(all.height));
  turn_upright(source_.data() + gp_jpeg_row_offset(jpeg), in_stride, stored.height, stored.width, turn, turned_.data(),
               out_stride);
  for (size_t i = 0; i < views.size(); ++i) {
    resizes_[i].take(passes, turned_.data(), out_stride, all.top, all.left, all.height);
    resizes_[i].write(passes, views[i].out);
  }
  return GP_OK;
}

void ImageMaker::resize(const uint8_t* pixels, const View& view, const Passes& passes) {
  const Box region = plan({view}, 1, passes);
  const size_t in_stride = static_cast<size_t>(view.geometry.window.width) * 3;
  const size_t stride = static_cast<size_t>(region.width) * 4 + kRowSlack;
  grow(source_, stride * kStrip);
  const uint8_t* from = pixels + static_cast<size_t>(region.top) * in_stride + static_cast<size_t>(region.left) * 3;
  for (int row = 0; row < region.height; row += kStrip) {
    const int count = std::min(kStrip, region.height - row);
    for (int i = 0; i < count; ++i, from += in_stride)
      widen(from, region.width, source_.data() + static_cast<size_t>(i) * stride);
    resizes_[0].take(passes, source_.data(), stride, region.top + row, region.left, count);
  }
  resizes_[0].write(passes, view.out);
}

void ImageMaker::trim() {
  if (jpeg_) gp_jpeg_trim(jpeg_.get());
  size_t kept = source_.capacity() + turned_.capacity();
  for (const Resize& resize : resizes_) kept += resize.bytes();
  if (kept <= kKeep) return;
  for (auto* buffer : {&source_, &turned_}) std::vector<uint8_t>().swap(*buffer);
  std::vector<Resize>().swap(resizes_);
}

}  // namespace gpupipe
