# Native tests and the fuzzer under AddressSanitizer and UBSan, in build/sanitize. Run by `make sanitize`.
BUILD := build/sanitize
# As setup.py: the vector code that the package runs here.
MARCH := $(if $(filter avx2,$(shell cat /proc/cpuinfo 2>/dev/null)),-march=x86-64-v3)
CXXFLAGS := -std=c++20 -O1 -g1 -Icsrc -Wall -Wextra -Wno-unused-parameter -fno-omit-frame-pointer -MMD -MP $(MARCH) \
  -fno-math-errno -fno-trapping-math -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all
LIBRARY := $(patsubst csrc/%.cpp,$(BUILD)/%.o,$(wildcard csrc/chip/*.cpp csrc/runtime/*.cpp))
SHARED := $(BUILD)/tests/container.o $(BUILD)/tests/mutate.o
PROGRAMS := $(BUILD)/fuzz $(BUILD)/runtime_tests

all: $(PROGRAMS)

$(BUILD)/fuzz $(BUILD)/runtime_tests: $(BUILD)/%: $(BUILD)/tests/%.o $(SHARED) $(LIBRARY)
	@$(CXX) $(CXXFLAGS) -o $@ $^ -ldl -lpthread

$(BUILD)/%.o: csrc/%.cpp
	@mkdir -p $(@D)
	@$(CXX) $(CXXFLAGS) -c -o $@ $<

-include $(LIBRARY:.o=.d) $(SHARED:.o=.d) $(PROGRAMS:$(BUILD)/%=$(BUILD)/tests/%.d)
