// KenLM's probing tables (`search_hashed.hh` of KenLM), read in place. A state is the number of a context, which is given
// as contexts are found; 0 is the empty one.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace sottovoce::ctc {

// The n-grams of one order: entries of a 64-bit key, which is 0 in free ones, a log10 probability and, below the highest
// order, a back-off.
struct ProbingTable {
    const uint8_t* start;
    uint64_t n_buckets;
    int64_t entry;
};

class Probing {
public:
    struct Answer {
        float score;
        int64_t state;
    };

    // unigrams: by id, of unigram_size bytes. tables: of orders 2, 3, …. end_word: its score is that of ending.
    Probing(const uint8_t* unigrams, int64_t unigram_size, const ProbingTable* tables, int n_tables, uint32_t end_word)
        : unigrams_(unigrams), unigram_size_(unigram_size), tables_(tables, tables + n_tables), end_word_(end_word),
          cache_(new Cached[kSize]()) {
        number({});
    }

    // The context of one word.
    int64_t begin(uint32_t word) {
        std::lock_guard<std::mutex> lock(mutex_);
        return number({{word}, {read(unigrams_ + word * unigram_size_).backoff}});
    }

    // The log-probability (natural) of a word after a state, and the next state.
    Answer follow(int64_t state, uint32_t word) const {
        const uint64_t key = static_cast<uint64_t>(state + 1) << 32 | (word + 1u);
        const uint64_t mixed = key * 0x9e3779b97f4a7c15u;
        uint64_t place = (mixed ^ mixed >> 29) & (kSize - 1);
        // Other threads write to the cache: an entry is complete before its key is.
        while (const uint64_t found = __atomic_load_n(&cache_[place].key, __ATOMIC_ACQUIRE)) {
            if (found == key) return {cache_[place].score, cache_[place].state};
            place = (place + 1) & (kSize - 1);
        }
        std::lock_guard<std::mutex> lock(mutex_);
        const Answer answer = compute(state, word);
        while (cache_[place].key && cache_[place].key != key) place = (place + 1) & (kSize - 1);
        if (!cache_[place].key && n_cached_ < kSize / 2) {
            ++n_cached_;
            cache_[place].score = answer.score;
            cache_[place].state = static_cast<int32_t>(answer.state);
            __atomic_store_n(&cache_[place].key, key, __ATOMIC_RELEASE);
        }
        return answer;
    }

    float end(int64_t state) const { return follow(state, end_word_).score; }

private:
    static constexpr uint64_t kSize = uint64_t{1} << 20;  // pages that are never touched take no memory

    // Words, the latest first, and the back-offs of the contexts of 1, 2, … of them.
    struct State {
        std::vector<uint32_t> words;
        std::vector<float> backoffs;
    };
    struct Value {
        float log10, backoff;
        bool may_extend;  // it begins a longer n-gram
    };
    struct Cached {
        uint64_t key;
        float score;
        int32_t state;
    };

    const uint8_t* unigrams_;
    int64_t unigram_size_;
    std::vector<ProbingTable> tables_;
    uint32_t end_word_;
    mutable std::mutex mutex_;
    mutable std::deque<State> states_;
    mutable std::map<std::vector<uint32_t>, int64_t> numbers_;
    std::unique_ptr<Cached[]> cache_;
    mutable uint64_t n_cached_ = 0;

    int64_t number(State state) const {
        const auto [at, is_new] = numbers_.try_emplace(state.words, static_cast<int64_t>(states_.size()));
        if (is_new) states_.push_back(std::move(state));
        return at->second;
    }

    static Value read(const uint8_t* at, bool has_backoff = true) {
        Value value{0, 0, false};
        std::memcpy(&value.log10, at, sizeof(float));
        value.log10 = -std::fabs(value.log10);  // the sign says something else
        if (!has_backoff) return value;
        uint32_t bits;
        std::memcpy(&bits, at + 4, sizeof bits);
        std::memcpy(&value.backoff, &bits, sizeof bits);
        value.may_extend = bits != 0x80000000u;
        return value;
    }

    static const uint8_t* find(const ProbingTable& table, uint64_t key) {
        for (uint64_t i = 0; i < table.n_buckets; ++i) {  // a damaged table may have no free bucket
            const uint8_t* at = table.start + (key % table.n_buckets + i) % table.n_buckets * table.entry;
            uint64_t found;
            std::memcpy(&found, at, sizeof found);
            if (found == key) return at + sizeof found;
            if (!found) break;
        }
        return nullptr;
    }

    Answer compute(int64_t number_before, uint32_t word) const {
        const State& before = states_[number_before];
        Value value = read(unigrams_ + word * unigram_size_);
        State after{{word}, {value.backoff}};
        size_t n_kept = value.may_extend ? 1 : 0, n_matched = 1;
        uint64_t key = word;
        for (size_t place = 0; place < before.words.size(); ++place, ++n_matched) {
            key = key * 8978948897894561157u ^ (1 + uint64_t{before.words[place]}) * 17894857484156487943u;
            const uint8_t* at = find(tables_[place], key);
            if (!at) break;
            const bool has_backoff = place + 1 < tables_.size();
            value = read(at, has_backoff);
            if (!has_backoff) continue;
            after.words.push_back(before.words[place]);
            after.backoffs.push_back(value.backoff);
            if (value.may_extend) n_kept = place + 2;
        }
        double backed_off = 0;
        for (size_t i = n_matched - 1; i < before.backoffs.size(); ++i) backed_off += before.backoffs[i];
        after.words.resize(n_kept);
        after.backoffs.resize(n_kept);
        constexpr double kLn10 = 2.302585092994046;
        return {static_cast<float>((value.log10 + backed_off) * kLn10), number(std::move(after))};
    }
};

}  // namespace sottovoce::ctc
