"""Draws who did what, and how full the store was."""
from __future__ import absolute_import, division, print_function

import argparse
import importlib

from fuel_prefetch.timeline import FULL, READING, TRAINING, WAITING, WORKING

# Okabe and Ito's colours, which the colour-blind can tell apart too. Work is
# dark and waiting is light, so that it also shows in grey.
COLORS = {READING: '#0072B2', WORKING: '#CC79A7', TRAINING: '#009E73',
          FULL: '#56B4E9', WAITING: '#E69F00'}
LABELS = [(READING, 'reading'), (WORKING, 'mapping, on workers'),
          (FULL, 'blocked: the store is full'), (TRAINING, 'training'),
          (WAITING, 'waiting for a batch')]
STEPS_SHOWN = 40


def picture(path):
    """Check an argument that names the file of a picture."""
    if not path.lower().endswith(('.png', '.svg')):
        raise argparse.ArgumentTypeError(
            "'{}' doesn't end with .png or .svg".format(path))
    try:
        importlib.import_module('matplotlib')
    except ImportError as error:
        raise argparse.ArgumentTypeError(
            'needs matplotlib ({}): pip install fuel-prefetch[plot]'.format(
                error))
    return path


def draw(timeline, path, title):
    """Draw a timeline into a file.

    Parameters
    ----------
    timeline : :class:`.Timeline`
        What went on. Above, it is drawn for some forty steps from the middle
        of the run, as more could not be told apart.
    path : str
        The file, whose ending tells the format.
    title : str
        What it is of.

    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    rows = list(timeline.rows.items())
    heights = [.5 + .4 * len(rows), 1.6]
    figure = Figure(figsize=(9, 2 + sum(heights)))
    canvas = (FigureCanvasSVG if path.lower().endswith('.svg') else
              FigureCanvasAgg)(figure)
    above, below = figure.subplots(
        2, 1, gridspec_kw={'height_ratios': heights})
    first, last = window(timeline)
    _draw_rows(above, rows, first, last)
    above.set_title('{}, the steps from {:.2f} s to {:.2f} s'.format(
        title, first, last), loc='left', fontsize='medium')
    _draw_held(below, timeline.held, first, last)
    used = {what for _, spans in rows for _, _, what in spans}
    handles = [above.barh([0], [0], color=COLORS[what], label=label)
               for what, label in LABELS if what in used]
    figure.legend(handles, [label for what, label in LABELS if what in used],
                  loc='upper center', ncol=len(handles), frameon=False,
                  fontsize='small')
    # The legend has the top third of an inch.
    figure.tight_layout(
        rect=(0, 0, 1, 1 - .33 / figure.get_size_inches()[1]))
    canvas.print_figure(path, dpi=120)


def window(timeline):
    """Return from when till when the timeline is drawn."""
    steps = [span for span in timeline.rows['training']
             if span.what == TRAINING]
    if not steps:
        return 0., 1.
    begin = max(0, (len(steps) - STEPS_SHOWN) // 2)
    shown = steps[begin:begin + STEPS_SHOWN]
    first = 0. if begin == 0 else shown[0].start
    return first, shown[-1].end


def _draw_rows(axes, rows, first, last):
    for number, (_, spans) in enumerate(rows):
        for what in COLORS:
            bars = [(start, end - start) for start, end, kind in spans
                    if kind == what and end > first and start < last]
            if bars:
                axes.broken_barh(
                    bars, (number - .4, .8), facecolors=COLORS[what],
                    edgecolors='white', linewidth=.5)
    axes.set_yticks(range(len(rows)))
    axes.set_yticklabels([row for row, _ in rows])
    axes.set_ylim(len(rows) - .5, -.5)
    axes.set_xlim(first, last)
    axes.set_xlabel('seconds')
    _hide_frame(axes)


def _draw_held(axes, held, first, last):
    axes.axvspan(first, last, color='#DDDDDD', linewidth=0)
    axes.step([moment for moment, _ in held], [count for _, count in held],
              where='post', color='black', linewidth=1)
    axes.set_xlim(0, max([last] + [moment for moment, _ in held]))
    axes.set_ylim(0, 1.1 * max([1] + [count for _, count in held]))
    axes.set_xlabel('seconds, of the whole run; in grey what is shown above')
    axes.set_ylabel('batches held')
    axes.yaxis.get_major_locator().set_params(integer=True)
    _hide_frame(axes)


def _hide_frame(axes):
    for side in ('top', 'right'):
        axes.spines[side].set_visible(False)
