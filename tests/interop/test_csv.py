"""CsvDataset and make_csv_dataset: the same records and the same errors as TensorFlow, record by record."""
import gzip

import numpy as np
import pytest
import tensorflow as tf

tf1 = tf.compat.v1
F, I, S = [0.5], [7], ["none"]  # with defaults
X = tf.data.experimental

CASES = {
    "plain": ("1,2.5,a\n3,4.5,b\n", [I, F, S], {}),
    "no end": ("1,2.5,a\n3,4.5,b", [I, F, S], {}),
    "windows": ("1,2.5,a\r\n3,4.5,b\r\n", [I, F, S], {}),
    "old mac": ("1,2.5,a\r3,4.5,b\r", [I, F, S], {}),
    "header": ("x,y,z\n1,2.5,a\n", [I, F, S], {"header": True}),
    "only header": ("x,y,z", [I, F, S], {"header": True}),
    "empty file": ("", [I, F, S], {}),
    "defaults": (",,\n1,,c\n", [I, F, S], {}),
    "required": ("1,2\n,3\n4,5\n", [tf.int32, tf.float32], {}),
    "na": ("NA,2.5,NA\n1,NA,a\n", [I, F, S], {"na_value": "NA"}),
    "quotes": ('"1","2.5","a,b"\n3,4,"say ""hi"""\n5,6,"two\nlines\r\n"\n', [I, F, S], {}),
    "last quoted": ('1,2,"a"', [I, F, S], {}),
    "empty quoted": ('1,2,""\n', [I, F, S], {}),
    "no quoting": ('1,2,"a"\n', [I, F, S], {"use_quote_delim": False}),
    "quote inside": ('1,2,a"b\n3,4,c\n', [I, F, S], {}),
    "quote not escaped": ('1,2,"a"b"\n3,4,c\n', [I, F, S], {}),
    "quote not closed": ('1,2,"a\n3,4,c\n', [I, F, S], {}),
    "too few": ("1,2\n3,4,c\n", [I, F, S], {}),
    "too many": ("1,2,a,b\n3,4,c\n", [I, F, S], {}),
    "blank line": ("1,2,a\n\n3,4,c\n", [I, F, S], {}),
    "one column": ("1\n\n3\n", [I], {}),
    "bad int": ("1.5\nx\n2\n", [I], {}),
    "too large": ("3000000000\n2\n", [I], {}),
    "bad float": ("a\n2\n", [F], {}),
    "spaces": (" 1 , 2 , a \n", [I, F, S], {}),
    "tabs": ("1\t2\ta,b\n", [I, F, S], {"field_delim": "\t"}),
    "select": ("1,2,3,4\n5,6,7,8\n", [I, I], {"select_cols": [1, 3]}),
    "select none there": ("1,2\n", [I, I], {"select_cols": [1, 3]}),
    "exclude": ("1,2,3,4\n5,6,7,8\n", [I, I], {"exclude_cols": [0, 2]}),
    "long types": ("1,2\n", [tf.int64, tf.float64], {}),
    "small buffer": ('1,2,"a ""quoted"" text"\n3,4,b\r\n5,6,c', [I, F, S], {"buffer_size": 3}),
    "gzip": ("1,2,a\n3,4,b\n", [I, F, S], {"compression_type": "GZIP"}),
}


def records(target, make):
    with tf.Graph().as_default():
        get = tf1.data.make_initializable_iterator(make())
        following, out = get.get_next(), []
        with tf1.Session(target, config=tf1.ConfigProto(operation_timeout_in_ms=30000)) as s:
            s.run(get.initializer)
            for _ in range(12):
                try:
                    out.append(s.run(following))
                except tf.errors.OutOfRangeError:
                    return out + ["end"]
                except tf.errors.OpError as e:
                    out.append(e.error_code)
    return out


@pytest.mark.parametrize("name", CASES)
def test_csv(fresh, tmp_path, name):
    text, defaults, kw = CASES[name]
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(text.encode()) if kw.get("compression_type") else text.encode())

    def make():
        return X.CsvDataset([str(path), str(path)], defaults, **kw)
    ours, theirs = records(fresh.target("worker"), make), records("", make)
    assert repr(ours) == repr(theirs), f"{ours} and {theirs}"


@pytest.mark.parametrize("op", ["CSVDataset", "ExperimentalCSVDataset"])
def test_old_names(fresh, tmp_path, op):
    (tmp_path / "a.csv").write_text("1,2,a\n3,,b\n")

    def make():
        v = getattr(tf.raw_ops, op)(filenames=str(tmp_path / "a.csv"), compression_type="", buffer_size=99, header=False, field_delim=",", use_quote_delim=True, na_value="",
                                    select_cols=tf.constant([1, 2], tf.int64), record_defaults=[[9], ["x"]], output_shapes=[[], []])
        return X.from_variant(v, (tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.string)))
    ours, theirs = records(fresh.target("worker"), make), records("", make)
    assert repr(ours) == repr(theirs) and theirs[1] == (9, b"b")


def test_make_csv(fresh, tmp_path):
    for i in range(2):
        (tmp_path / f"{i}.csv").write_text("a,b,c\n" + "".join(f"{i},{i * 0.5},w{i % 3}\n" for i in range(10)))

    def make():
        return X.make_csv_dataset(str(tmp_path / "*.csv"), 4, label_name="a", shuffle=False, num_epochs=1, select_columns=["a", "c"])
    ours, theirs = records(fresh.target("worker"), make), records("", make)
    assert repr(ours) == repr(theirs) and len(theirs) > 4
    assert theirs[0][0]["c"].dtype == np.dtype(object)
