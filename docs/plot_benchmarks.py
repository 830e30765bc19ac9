"""Draws what ``fuel-prefetch bench --json FILE`` has measured of processes.

``python docs/plot_benchmarks.py benchmarks.json benchmarks.png``

"""
import json
import sys

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind can tell apart too.
COLORS = {'memcpy': '#999999', 'ours, process': '#0072B2',
          'ours, thread': '#56B4E9', "SPDL's arena": '#009E73',
          "PyTorch's DataLoader": '#E69F00',
          "Fuel's MultiProcessing": '#D55E00'}
SIZES = ['1 MiB', '16 MiB', '64 MiB']
DEPTHS = ['10', '100']


def draw(measured, path):
    """Draw the bandwidth of large batches and the time of tiny ones."""
    figure = Figure(figsize=(9, 3.8))
    left, right = figure.subplots(1, 2, gridspec_kw={'width_ratios': [3, 2]})
    bars(left, SIZES, '{} of float32: {}', measured['process_bandwidth'],
         'GB/s, more is better', 'Large batches, filled as they are made')
    left.set_yscale('log')
    left.set_ylim(.1, 100)
    left.set_yticks([.1, 1, 10, 100])
    left.set_yticklabels(['0.1', '1', '10', '100'])
    left.set_xticklabels(SIZES)
    bars(right, DEPTHS, '64 bytes at depth {}: {}', measured['process_tiny'],
         'us a batch, less is better', 'Handing over 64 bytes')
    right.set_xticklabels(['max_store={}'.format(depth) for depth in DEPTHS])
    handles = {label: handle for axes in (left, right) for handle, label in
               zip(*axes.get_legend_handles_labels())}
    figure.legend(handles.values(), handles, loc='lower center', ncol=3,
                  frameon=False)
    figure.tight_layout(rect=(0, .14, 1, 1))
    FigureCanvasAgg(figure).print_figure(path, dpi=110)


def bars(axes, groups, name, results, unit, title):
    """Draw a group of bars for each of `groups`, of those who took part."""
    values = {result['what']: result['value'] for result in results}
    readers = [reader for reader in COLORS
               if name.format(groups[0], reader) in values]
    width = .8 / len(readers)
    for index, reader in enumerate(readers):
        axes.bar([place + (index - (len(readers) - 1) / 2.) * width
                  for place in range(len(groups))],
                 [values[name.format(group, reader)] for group in groups],
                 width, color=COLORS[reader], label=reader)
    axes.set_xticks(range(len(groups)))
    axes.set_ylabel(unit)
    axes.set_title(title, fontsize=11)
    for side in ('top', 'right'):
        axes.spines[side].set_visible(False)


if __name__ == '__main__':
    with open(sys.argv[1]) as file_:
        draw(json.load(file_)['results'], sys.argv[2])
