# 'make demo' and 'make test' do everything on a machine that has nothing but a
# Python. The README gives the plain commands that each stands for.

PYTHON = python3
VENV = .venv

PIP_INSTALL = $(VENV)/bin/python -m pip install -c constraints/old-pythons.txt

.PHONY: demo test test-all test-chaos docs dist bench clean

demo: $(VENV)/installed-demo
	$(VENV)/bin/fuel-prefetch demo

test: $(VENV)/installed-test
	$(VENV)/bin/python -m flake8 \
		fuel_prefetch tests benchmarks docs setup.py noxfile.py
	$(VENV)/bin/python -m nose2

test-all: $(VENV)/installed-matrix
	$(VENV)/bin/python -m nox

test-chaos: $(VENV)/installed-test
	FUEL_PREFETCH_CHAOS=240 $(VENV)/bin/python -m nose2 tests.test_chaos

docs: $(VENV)/installed-docs
	$(VENV)/bin/python -m sphinx -n -W --keep-going docs docs/_build/html
	$(VENV)/bin/python docs/check_links.py docs/_build/html

dist: $(VENV)/installed-dist
	CC=true LDSHARED=true $(VENV)/bin/python tests/check_dist.py

bench: $(VENV)/installed-demo
	$(VENV)/bin/python -m benchmarks

clean:
	rm -rf $(VENV) .nox build dist docs/_build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An empty file marks what is installed, so that a second run starts at once
# and a change of the requirements installs anew.
#
# One command does on every Python, without a compiler. CC and LDSHARED leave
# out Fuel's image extension, which doesn't compile on 3.8 and newer and which
# Fuel does without. --use-pep517 builds Fuel with a current setuptools: the
# one that comes with 3.8 and 3.9 insists on the extension.
$(VENV)/installed-%: $(VENV)/created setup.py constraints/old-pythons.txt
	CC=true LDSHARED=true $(PIP_INSTALL) --use-pep517 -e '.[$*]'
	touch $@

# virtualenv is for a Python without venv: 2.7, or Debian's bare python3.
$(VENV)/created:
	$(PYTHON) -m venv $(VENV) || $(PYTHON) -m virtualenv $(VENV)
	$(PIP_INSTALL) --upgrade pip
	touch $@
