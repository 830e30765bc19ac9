"""Installation script."""
from io import open
from os import path

from setuptools import find_packages, setup

HERE = path.abspath(path.dirname(__file__))

with open(path.join(HERE, 'README.rst'), encoding='utf-8') as f:
    LONG_DESCRIPTION = f.read().strip()

# Read rather than imported: importing the package imports Fuel, which a
# machine that is only installing doesn't have yet.
# The rest of what the demonstration uses comes with Fuel: h5py, SciPy, Pillow
# and progressbar2.
DASK = ['distributed; python_version >= "3.8"']
DEMO = ['scikit-learn']
PLOT = ['matplotlib']
COMPRESSION = ['lz4', 'blosc2; python_version >= "3.8"']

exec_results = {}
with open(path.join(HERE, 'fuel_prefetch', 'version.py')) as f:
    exec(f.read(), exec_results)

setup(
    name='fuel-prefetch',
    version=exec_results['version'],  # PEP 440 compliant
    description='Reads ahead of a Fuel data stream while the model trains.',
    long_description=LONG_DESCRIPTION,
    long_description_content_type='text/x-rst',
    license='MIT',
    classifiers=[
        'Development Status :: 3 - Alpha',
        'Intended Audience :: Developers',
        'Intended Audience :: Science/Research',
        'Programming Language :: Python',
        'Programming Language :: Python :: 2',
        'Programming Language :: Python :: 2.7',
        'Programming Language :: Python :: 3',
        'Programming Language :: Python :: 3.6',
        'Programming Language :: Python :: 3.7',
        'Programming Language :: Python :: 3.8',
        'Programming Language :: Python :: 3.9',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Programming Language :: Python :: 3.13',
        'Topic :: Scientific/Engineering',
        'Topic :: Utilities',
    ],
    keywords='fuel blocks dataset data stream prefetch background pipeline',
    packages=find_packages(include=['fuel_prefetch', 'fuel_prefetch.*']),
    package_data={'fuel_prefetch': ['py.typed', '*.pyi']},
    python_requires='>=2.7, !=3.0.*, !=3.1.*, !=3.2.*, !=3.3.*, !=3.4.*, '
                    '!=3.5.*',
    install_requires=[
        # Fuel needs PyTables, and PyTables numexpr, whose later releases
        # claim to suit 2.7 but don't install there. Stands before Fuel since
        # the last pip for 2.7 keeps the first requirement that it meets.
        'numexpr<2.8; python_version < "3"',
        'fuel>=0.2.0',
        'futures; python_version < "3"',
        # PyTables' last release for 3.9 is built for NumPy 1.
        'numpy; python_version != "3.9"',
        'numpy<2; python_version == "3.9"',
        'pyzmq>=17',
        'six>=1.12',
    ],
    extras_require={
        'compression': COMPRESSION,
        'dask': DASK,
        'demo': DEMO,
        'plot': PLOT,
        # The picture doesn't depend on the Python.
        'test': DASK + DEMO + [plot + '; python_version >= "3.11"'
                               for plot in PLOT] + [
            'nose2', 'hypothesis', 'mock; python_version < "3"',
            'flake8; python_version >= "3"',
            'loky; python_version >= "3.8"',
            'mypy; python_version >= "3.11"'],
        # The last of each that can make an environment for 2.7.
        'matrix': ['nox<2026', 'virtualenv<20.22'],
        'docs': ['sphinx', 'numpydoc', 'sphinx-rtd-theme'],
        'dist': ['build'],
        'bench': ['prefetch_generator',
                  'torch; python_version >= "3.10"',
                  'spdl; python_version >= "3.10"'],
    },
    entry_points={
        'console_scripts': ['fuel-prefetch = fuel_prefetch.bin.main:main'],
    },
    zip_safe=False,
)
