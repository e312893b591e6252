// The labels of a frame that extend beams, and the best candidates for the next beams.
#pragma once

#include <cstdint>
#include <vector>

#include "scorer.h"

namespace sottovoce::ctc {

// Labels to extend by. The likeliest come first: after them, few others can still enter the beam.
class Labels {
public:
    static constexpr int kFirst = 16;  // how many come first, in order

    struct Label {
        float log_prob;
        int32_t id;
    };
    std::vector<Label> found;

    // Find the `most` likeliest of frame (n,) above `least` but the blank, in order; ties go to the lower id.
    void find_likeliest(const float* frame, int n, float least, int blank, int most);
    // After that, find at most `most` further ones above `least`, in no order.
    void find_others(const float* frame, int n, float least, int blank, int most);
};

struct Candidate {
    float score;     // for ranking
    float acoustic;  // log-probability of its paths
    int source;      // the beam that it continues
    int32_t token;   // that it appends; -1: none
    int arc;
};

// The best candidates, at most so many. Keys sort as (score, lower place), so that comparisons look nothing up.
class Candidates {
public:
    explicit Candidates(int size) : size_(size), list_(size), keys_(size), heap_(size) {}

    float best() const { return best_; }
    // The score that a new candidate must exceed.
    float limit() const { return limit_; }

    // threshold: nats below the best at which candidates are dropped.
    void clear(float threshold);
    void offer(const Candidate& candidate);
    // The places of the candidates, best first.
    const std::vector<int64_t>& sorted();
    const Candidate& at(int64_t key) const { return list_[place_of(key)]; }

private:
    int size_, count_ = 0;
    float best_ = kNever, limit_ = kNever, threshold_ = 0.0f;
    std::vector<Candidate> list_;
    std::vector<int64_t> keys_, heap_, order_;  // heap: the worst first, once there are `size`

    static int64_t key_of(float score, int place);
    static int place_of(int64_t key) { return static_cast<int>(0xffffffff - (key & 0xffffffff)); }
    void sink(int64_t key);
};

}  // namespace sottovoce::ctc
