# Every table of live speech in docs/, a file each, as its page gives the command; a table that is there is not made again,
# and one that was broken off goes on where its log ends. SHARED: the folder that holds data/; SIMUL: a checkout of
# github.com/ufal/SimulStreaming, whose rows are left out without it; EITHER: the number formats. Hours of processor time.
SHARED ?= ../shared
SIMUL ?=
EITHER ?= float32,bfloat16
LIVE = OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks live
OF = $(SHARED) --part test --log live/log --dtypes
OTHER = $(if $(SIMUL),--simul $(SIMUL))
TABLES = errors soon together sentences curve curve-often curve-rare curve-all beam codeswitch \
	hour-float32 hour-bfloat16 translate noise beside
live-tables: $(TABLES:%=live/%.txt)  ## every table of live speech in docs/, into live/

live/errors.txt: ARGS = errors $(OF) $(EITHER) --clips 40 $(OTHER)
live/soon.txt: ARGS = errors $(OF) $(EITHER) --clips 40 --frame-thresholds 10 --chunk-s 0.3
live/together.txt: ARGS = errors $(OF) $(EITHER) --clips 40 --together 4
live/sentences.txt: ARGS = errors $(OF) auto --clips 160 --together 20 --pauses-s 0.2 \
	--sets kathleen-en,kerstin-de,dona-es,nemo-pl,librispeech-mini
live/curve.txt: ARGS = errors $(OF) float32 --clips 20 --frame-thresholds 10,25,50 $(OTHER) --picture live/latency.png
live/curve-often.txt: ARGS = errors $(OF) float32 --clips 20 --frame-thresholds 10,25 --chunk-s 0.25
live/curve-rare.txt: ARGS = errors $(OF) float32 --clips 20 --chunk-s 1.2 $(OTHER)
live/curve-all.txt: ARGS = errors $(OF) float32 --clips 40 --chunk-s 0.5,0.25 --frame-thresholds 10,25,50
live/beam.txt: ARGS = errors $(OF) float32 --clips 40 --beam-sizes 1,5
live/codeswitch.txt: ARGS = codeswitch $(OF) $(EITHER)
live/hour-float32.txt: ARGS = hour $(SHARED) --part test --dtypes float32 --picture live/hour-float32.png
live/hour-bfloat16.txt: ARGS = hour $(SHARED) --part test --dtypes bfloat16 --picture live/hour-bfloat16.png
live/translate.txt: ARGS = translate $(OF) $(EITHER) --clips 16 --frame-thresholds 25,50
live/noise.txt: ARGS = noise $(SHARED) --log live/log --dtypes $(EITHER)
live/beside.txt: ARGS = beside $(OF) bfloat16 --clips 16 --new-words 0,4

live/%.txt: | $(VENV)/test
	@mkdir -p live
	$(LIVE) $(ARGS) > $@.part && mv $@.part $@
