"""CURVE keys: files of them, and which addresses need them."""
from __future__ import absolute_import, division, print_function

import os
import re
import stat

import six
import zmq

from fuel_prefetch.arguments import check, is_path

_LINE = re.compile(r'^\s*(public|secret)-key\s*=\s*"(.{40})"\s*$', re.M)
_TCP = re.compile(r'tcp://(\[[^]]+\]|[^:/\s]+):(\*|\d{1,5})\Z')
_LOOPBACK = re.compile(r'localhost\Z|127(\.\d{1,3}){3}\Z|\[::1\]\Z')


def check_address(name, address, wildcard=False):
    """Raise ValueError unless it is ``tcp://host:port`` or ``ipc://path``."""
    match = isinstance(address, six.string_types) and _TCP.match(address)
    if match and (match.group(2) == '*' or int(match.group(2)) < 65536):
        if wildcard or (match.group(2) not in ('*', '0') and
                        match.group(1) != '*'):
            return
    elif isinstance(address, six.string_types) and (
            re.match(r'ipc://.+\Z', address)):
        return
    raise ValueError('{} must be tcp://host:port or ipc://path, got '
                     '{!r}'.format(name, address))


def is_local(address):
    """Whether no other machine can reach what listens at an address."""
    match = _TCP.match(address)
    return not match or _LOOPBACK.match(match.group(1)) is not None


def make_keys(path):
    """Write a new pair of keys to `path` and `path` with ``.pub`` added.

    The first file is the secret, readable by its owner only. Neither may be
    there already.

    """
    public, secret = (key.decode('ascii') for key in zmq.curve_keypair())
    for name, mode, text in [
            (path, 0o600, 'curve\n    public-key = "{}"\n    secret-key = '
             '"{}"\n'.format(public, secret)),
            (path + '.pub', 0o644, 'curve\n    public-key = "{}"\n'.format(
                public))]:
        with os.fdopen(os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), 'w') as f:
            f.write(text)


def read_keys(name, path):
    """Return the public and the secret key of a file, ``None`` for neither.

    Parameters
    ----------
    name : str
        That of the argument which names the file, for messages.
    path : str
        The file.

    Raises
    ------
    ValueError
        If it can't be read, there is no public key, or others may read a
        secret one.

    """
    check(name, path, 'be the path of a file of keys', is_path(path))
    try:
        with open(path) as f:
            keys = dict(_LINE.findall(f.read(65536)))
            mode = os.fstat(f.fileno()).st_mode
    except EnvironmentError as error:
        raise ValueError('{} can not be read from {!r}: {}'.format(
            name, path, error.strerror))
    except UnicodeDecodeError:
        keys = {}
    if 'public' not in keys:
        raise ValueError('{}: there is no key in {!r}'.format(name, path))
    if 'secret' in keys and os.name == 'posix' and (
            mode & (stat.S_IRWXG | stat.S_IRWXO)):
        raise ValueError('{}: others than its owner may read the secret key '
                         '{!r}; run chmod 600 on it'.format(name, path))
    return tuple(keys[name].encode('ascii') if name in keys else None
                 for name in ('public', 'secret'))


def read_secret(name, path):
    """Return both keys of a file that has to have both."""
    public, secret = read_keys(name, path)
    if secret is None:
        raise ValueError('{}: there is no secret key in {!r}'.format(
            name, path))
    return public, secret


def read_all_public(name, paths):
    """Return the public keys of files, or of all ``*.pub`` in a folder."""
    if is_path(paths):
        paths = ([os.path.join(paths, file_) for file_ in os.listdir(paths)
                  if file_.endswith('.pub')] if os.path.isdir(paths)
                 else [paths])
    check(name, paths, 'be a folder, or a file or several, of public keys',
          isinstance(paths, (list, tuple, set, frozenset)))
    return frozenset(read_keys(name, path)[0] for path in paths)


def read_client_keys(keys, server_key):
    """Return a client's public and secret key, and the server's public one.

    ``None`` if both of the files are.

    """
    check('server_key', server_key, 'go with keys',
          (keys is None) == (server_key is None))
    if keys is None:
        return None
    return read_secret('keys', keys) + (
        read_keys('server_key', server_key)[0],)
