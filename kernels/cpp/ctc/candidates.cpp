#include "candidates.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace sottovoce::ctc {

namespace {

constexpr int kBlock = 64;

// Whether one of frame[begin:end] is above a bar. Eight maxima, which the compiler keeps in vectors.
bool any_above(const float* frame, int begin, int end, float bar) {
    float top[8];
    std::fill_n(top, 8, kNever);
    int i = begin;
    for (; i + 8 <= end; i += 8)
        for (int lane = 0; lane < 8; ++lane) top[lane] = frame[i + lane] > top[lane] ? frame[i + lane] : top[lane];
    for (; i < end; ++i) top[0] = frame[i] > top[0] ? frame[i] : top[0];
    return *std::max_element(top, top + 8) > bar;
}

}  // namespace

void Labels::find_likeliest(const float* frame, int n, float least, int blank, int most) {
    found.clear();
    float bar = least;
    for (int begin = 0; begin < n; begin += kBlock) {
        const int end = std::min(begin + kBlock, n);
        if (!any_above(frame, begin, end, bar)) continue;
        for (int id = begin; id < end; ++id) {
            const float value = frame[id];
            if (value <= bar || id == blank) continue;
            if (static_cast<int>(found.size()) < most) found.push_back({});
            size_t place = found.size() - 1;
            for (; place > 0 && found[place - 1].log_prob < value; --place) found[place] = found[place - 1];
            found[place] = {value, id};
            if (static_cast<int>(found.size()) == most) bar = std::max(least, found.back().log_prob);
        }
    }
}

void Labels::find_others(const float* frame, int n, float least, int blank, int most) {
    const Label last = found.back();
    found.clear();
    if (last.log_prob <= least) return;
    for (int begin = 0; begin < n; begin += kBlock) {
        const int end = std::min(begin + kBlock, n);
        if (!any_above(frame, begin, end, least)) continue;
        for (int id = begin; id < end; ++id) {
            const float value = frame[id];
            if (value <= least || id == blank || value > last.log_prob) continue;
            if (value < last.log_prob || id > last.id) found.push_back({value, id});
        }
    }
    if (static_cast<int>(found.size()) <= most) return;
    const auto more_likely = [](const Label& a, const Label& b) { return a.log_prob > b.log_prob; };
    std::nth_element(found.begin(), found.begin() + most, found.end(), more_likely);
    found.resize(most);
}

void Candidates::clear(float threshold) {
    count_ = 0;
    best_ = limit_ = kNever;
    threshold_ = threshold * 1.000001f;  // a little more, so that rounding drops nothing
}

int64_t Candidates::key_of(float score, int place) {
    int32_t bits;
    std::memcpy(&bits, &score, sizeof bits);
    bits = bits >= 0 ? bits : bits ^ 0x7fffffff;
    return static_cast<int64_t>(static_cast<uint64_t>(static_cast<int64_t>(bits)) << 32 |
                                (0xffffffffu - static_cast<uint32_t>(place)));
}

void Candidates::offer(const Candidate& candidate) {
    if (candidate.score <= limit_) return;
    const bool is_full = count_ == size_;
    const int place = is_full ? place_of(heap_[0]) : count_++;
    list_[place] = candidate;
    keys_[place] = key_of(candidate.score, place);
    best_ = std::max(best_, candidate.score);
    if (is_full) {
        sink(keys_[place]);
    } else if (count_ == size_) {
        std::reverse_copy(keys_.begin(), keys_.end(), heap_.begin());  // the best come first
        std::make_heap(heap_.begin(), heap_.end(), std::greater<int64_t>());
    }
    const float lowest = count_ == size_ ? at(heap_[0]).score : kNever;
    limit_ = std::max(lowest, best_ - threshold_);
}

void Candidates::sink(int64_t key) {
    int at = 0;
    for (int child = 1; child < size_; child = 2 * at + 1) {
        if (child + 1 < size_ && heap_[child + 1] < heap_[child]) ++child;
        if (heap_[child] >= key) break;
        heap_[at] = heap_[child];
        at = child;
    }
    heap_[at] = key;
}

// Candidates are nearly in order: insertion is fast, unless too many of them have to move.
const std::vector<int64_t>& Candidates::sorted() {
    constexpr int kMoves = 64;  // of each candidate, on average
    order_.assign(keys_.begin(), keys_.begin() + count_);
    int64_t left = static_cast<int64_t>(kMoves) * count_;
    for (int place = 1; place < count_ && left >= 0; ++place) {
        const int64_t key = order_[place];
        int at = place;
        for (; at > 0 && order_[at - 1] < key; --at) order_[at] = order_[at - 1];
        order_[at] = key;
        left -= place - at;
    }
    if (left < 0) std::sort(order_.begin(), order_.end(), std::greater<int64_t>());
    return order_;
}

}  // namespace sottovoce::ctc
