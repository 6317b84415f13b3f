#include "image.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace gpupipe {
namespace {

constexpr int kStrip = 16;  // rows decoded at a time: they are still in the nearest cache when they are resized
constexpr size_t kKeep = size_t{16} << 20;
constexpr int kFar = 1 << 18;  // pixels that a window may have, and that it may lie away from the image

// Rows that begin at a multiple of 16 bytes, 32 with AVX2, libjpeg-turbo's color conversion writes past the caches
// (movntdq), and here they are read at once. With none of them there four pixels of the horizontal pass take 6.7 cycles,
// where half of them were 8.9, with all of them 10.3; an image takes 5 to 8 % less (AMD EPYC, Zen 5, libjpeg-turbo 2.1).
constexpr size_t kStep = 32, kBetween = 8;

size_t in_steps(size_t bytes) { return (bytes + kStep - 1) / kStep * kStep; }

uint8_t* between_steps(uint8_t* at) { return at + (kBetween - reinterpret_cast<uintptr_t>(at)) % kStep; }

int divide_up(int value, int by) { return (value + by - 1) / by; }

bool within(int start, int length, int size) { return start >= 0 && length > 0 && start < size && length <= size - start; }

bool makes_sense(const View& view, int height, int width) {
  const Geometry& g = view.geometry;
  if (view.fill != nullptr) {
    const int sides[] = {g.window.height, g.window.width, g.resized_height, g.resized_width};
    const int places[] = {g.window.top, g.window.left, g.anchor_top, g.anchor_left};
    return std::all_of(sides, sides + 4, [](int side) { return side > 0 && side <= kFar; }) &&
           std::all_of(places, places + 4, [](int place) { return place >= -kFar && place <= kFar; });
  }
  return within(g.window.top, g.window.height, height) && within(g.window.left, g.window.width, width) &&
         within(g.anchor_top, g.out_height, g.resized_height) && within(g.anchor_left, g.out_width, g.resized_width);
}

int scale_denominator(const View& view, bool fast, int height, int width) {
  const Geometry& g = view.geometry;
  const bool inside = within(g.window.top, g.window.height, height) && within(g.window.left, g.window.width, width);
  for (int denominator = 8; fast && inside && denominator > 1; denominator /= 2) {
    if (g.window.height / denominator >= g.resized_height && g.window.width / denominator >= g.resized_width)
      return denominator;
  }
  return 1;
}

AxisSpec axis_spec(int start, int length, int denominator, int resized, int anchor, int out, Padding padding) {
  const int low = start / denominator;
  const int in = divide_up(start + length, denominator) - low;
  const double begin = static_cast<double>(start) / denominator - low;
  return {in, begin, begin + static_cast<double>(length) / denominator, resized, anchor, out, padding};
}

// What of `out` pixels at `anchor` comes from `resized` ones: so many, from that pixel of these and of those on.
struct Shown {
  int count, resized, out;
};

Shown shown(int anchor, int out, int resized, Padding padding) {
  if (padding != Padding::constant) return {out, anchor, 0};
  const int first = std::max(anchor, 0), last = std::min(anchor + out, resized);
  return {std::max(last - first, 0), first, first - anchor};
}

// The part of a box that lies in the image; where there is none, a pixel next to it, as any image is looked at.
Box inside_image(const Box& box, int height, int width) {
  const int top = std::min(std::max(box.top, 0), height - 1), left = std::min(std::max(box.left, 0), width - 1);
  const int bottom = std::min(box.top + box.height, height), right = std::min(box.left + box.width, width);
  return {top, left, std::max(bottom - top, 1), std::max(right - left, 1)};
}

// Pixels of `bytes` bytes.
void paint(uint8_t* to, int count, const uint8_t* color, size_t bytes) {
  for (int i = 0; i < count; ++i, to += bytes) std::memcpy(to, color, 3);
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

// Turns `rows` rows of 4-byte pixels upright, the first being row `top` of a box as it is stored. Both buffers have
// their strides in bytes.
void turn_upright(const uint8_t* in, size_t in_stride, int top, int rows, const Box& box, const Turn& turn,
                  uint8_t* out, size_t out_stride) {
  for (int row = 0; row < rows; ++row) {
    const int y = turn.from_bottom ? box.height - 1 - top - row : top + row;
    for (int column = 0; column < box.width; ++column) {
      const int x = turn.from_right ? box.width - 1 - column : column;
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
  const Shown down = shown(g.anchor_top, g.out_height, g.resized_height, view.padding);
  const Shown across = shown(g.anchor_left, g.out_width, g.resized_width, view.padding);
  const bool any = down.count > 0 && across.count > 0;  // else a pixel is resized, and painted over
  rows_.compute(axis_spec(g.window.top, g.window.height, denominator, g.resized_height, any ? down.resized : 0,
                          any ? down.count : 1, view.padding),
                view.filter, false);
  columns_.compute(axis_spec(g.window.left, g.window.width, denominator, g.resized_width, any ? across.resized : 0,
                             any ? across.count : 1, view.padding),
                   view.filter, g.flip);
  shown_ = {down.out, g.flip ? g.out_width - across.out - across.count : across.out, any ? down.count : 0,
            across.count};
  region_ = {g.window.top / denominator + rows_.low, g.window.left / denominator + columns_.low, rows_.high - rows_.low,
             columns_.high - columns_.low};
  first_ = last_ = region_.top;
  grow(middle_, (static_cast<size_t>(columns_.out) * 3 + kRowSlack) * static_cast<size_t>(region_.height));
  passes.prepare(columns_, prepared_);
}

uint8_t* Resize::middle_row(int row) {
  return middle_.data() + (static_cast<size_t>(columns_.out) * 3 + kRowSlack) * static_cast<size_t>(row - region_.top);
}

void Resize::take(const Passes& passes, const uint8_t* in, size_t in_stride, int top, int left, int rows) {
  const int first = std::max(top, region_.top), last = std::min(top + rows, region_.top + region_.height);
  if (first >= last) return;
  const uint8_t* from = in + static_cast<size_t>(first - top) * in_stride + static_cast<size_t>(region_.left - left) * 4;
  passes.horizontal(columns_, prepared_, from, in_stride, last - first, middle_row(first),
                    static_cast<size_t>(columns_.out) * 3 + kRowSlack);
  if (first_ == last_) first_ = first;
  last_ = last;
}

void Resize::write(const Passes& passes, const View& view) {
  const Geometry& g = view.geometry;
  const int bottom = region_.top + region_.height;
  for (int row = region_.top; row < bottom; ++row) {  // a row of one color is resized to that color
    if (row < first_ || row >= last_) paint(middle_row(row), columns_.out, view.fill, 3);
  }
  if (shown_.height < g.out_height || shown_.width < g.out_width)
    paint(view.out, g.out_height * g.out_width, view.fill, 3);
  const size_t stride = static_cast<size_t>(g.out_width) * 3, bytes = static_cast<size_t>(columns_.out) * 3;
  if (shown_.height > 0)
    passes.vertical(rows_, middle_.data(), bytes + kRowSlack, bytes,
                    view.out + static_cast<size_t>(shown_.top) * stride + static_cast<size_t>(shown_.left) * 3, stride);
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
      if (makes_sense(view, transposed ? width : height, transposed ? height : width)) continue;
      std::snprintf(message, GP_MESSAGE, "the window lies outside the image");
      return GP_CHANGED;
    }
    code = request.orientation > 1 ? decode_turned(views, request.orientation, passes)
                                   : decode_upright(views, request.fast, passes);
  }
  if (code != GP_OK) std::snprintf(message, GP_MESSAGE, "%s", gp_jpeg_message(jpeg));
  return code;
}

void ImageMaker::take(const std::vector<View>& views, const Passes& passes, const Margins& margins, uint8_t* rows,
                      size_t stride, const Box& box) {
  for (size_t i = 0; i < views.size(); ++i) {
    for (int row = 0; views[i].fill != nullptr && row < box.height; ++row) {
      uint8_t* at = rows + static_cast<size_t>(row) * stride;
      paint(at, margins.left, views[i].fill, 4);
      paint(at + static_cast<size_t>(margins.left + box.width) * 4, margins.right, views[i].fill, 4);
    }
    resizes_[i].take(passes, rows, stride, box.top, box.left - margins.left, box.height);
  }
}

// Each strip of rows goes through the horizontal passes as soon as it is decoded.
int ImageMaker::decode_upright(const std::vector<View>& views, bool fast, const Passes& passes) {
  gp_jpeg* jpeg = jpeg_.get();
  const int height = gp_jpeg_height(jpeg), width = gp_jpeg_width(jpeg);
  int denominator = 8;
  for (const View& view : views) denominator = std::min(denominator, scale_denominator(view, fast, height, width));
  const Box all = plan(views, denominator, passes);
  const Box inside = inside_image(all, divide_up(height, denominator), divide_up(width, denominator));
  const Margins margins(all, inside);
  int code = gp_jpeg_begin(jpeg, denominator, inside.top, inside.left, inside.height, inside.width);
  if (code != GP_OK) return code;
  // Where there is a margin at the left, the rows that libjpeg gives begin with the image.
  const size_t stride = in_steps(gp_jpeg_row_bytes(jpeg) + margins.bytes() + kRowSlack);
  const size_t left = static_cast<size_t>(margins.left) * 4;
  grow(source_, stride * kStrip + kStep);
  uint8_t* rows = between_steps(source_.data() + left);
  for (int row = 0; row < inside.height; row += kStrip) {
    const int count = std::min(kStrip, inside.height - row);
    code = gp_jpeg_rows(jpeg, rows, stride, count);
    if (code != GP_OK) return code;
    take(views, passes, margins, rows - left + gp_jpeg_row_offset(jpeg), stride,
         {inside.top + row, inside.left, count, inside.width});
  }
  code = gp_jpeg_end(jpeg);
  for (size_t i = 0; i < views.size() && code == GP_OK; ++i) resizes_[i].write(passes, views[i]);
  return code;
}

// The passes round differently along rows and columns, so the pixels are turned before them.
int ImageMaker::decode_turned(const std::vector<View>& views, int orientation, const Passes& passes) {
  gp_jpeg* jpeg = jpeg_.get();
  const int height = gp_jpeg_height(jpeg), width = gp_jpeg_width(jpeg);
  const Turn turn(orientation);
  const Box all = plan(views, 1, passes);
  const Box inside = inside_image(all, turn.transposed ? width : height, turn.transposed ? height : width);
  const Margins margins(all, inside);
  const Box stored = stored_box(inside, turn, height, width);
  int code = gp_jpeg_begin(jpeg, 1, stored.top, stored.left, stored.height, stored.width);
  if (code != GP_OK) return code;
  const size_t in_stride = in_steps(gp_jpeg_row_bytes(jpeg));
  const size_t out_stride = static_cast<size_t>(inside.width) * 4 + margins.bytes() + kRowSlack;
  grow(source_, in_stride * kStrip + kStep);
  uint8_t* rows = between_steps(source_.data());
  grow(turned_, out_stride * static_cast<size_t>(inside.height));
  for (int row = 0; row < stored.height; row += kStrip) {
    const int count = std::min(kStrip, stored.height - row);
    code = gp_jpeg_rows(jpeg, rows, in_stride, count);
    if (code != GP_OK) return code;
    turn_upright(rows + gp_jpeg_row_offset(jpeg), in_stride, row, count, stored, turn,
                 turned_.data() + static_cast<size_t>(margins.left) * 4, out_stride);
  }
  code = gp_jpeg_end(jpeg);
  if (code != GP_OK) return code;
  take(views, passes, margins, turned_.data(), out_stride, inside);
  for (size_t i = 0; i < views.size(); ++i) resizes_[i].write(passes, views[i]);
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
  resizes_[0].write(passes, view);
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
