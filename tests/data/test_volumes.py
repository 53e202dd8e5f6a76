"""Volumes of every format in every orientation: the right voxel on the right place, and back."""

import gzip
import itertools
import os
import resource
from contextlib import contextmanager

import nibabel
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from konsil.data.findings import BadFile
from konsil.data.volumes import (
    SUFFIXES,
    Volume,
    from_planes,
    is_volume,
    parts_of,
    plane_spacing,
    planes,
    read_mask_volume,
    read_volume,
    write_volume,
)
from konsil.errors import DataError
from tests.data.volume_files import (
    dicom_slice,
    grid,
    noise,
    save_dicom,
    write_itk,
    write_nifti,
    write_series,
)

VIEWS = ("axial", "coronal", "sagittal")
ORIENTATIONS = [
    (axes, signs)
    for axes in itertools.permutations(range(3))
    for signs in itertools.product((1, -1), repeat=3)
]
# One voxel of the box, counted to the right (of 4), to the front (of 5), to the head (of 6).
MARK = (3, 1, 2)
# Where it must appear: rows and columns count from the top left of the picture.
SEEN = {"axial": (2, 3, 0), "coronal": (1, 3, 0), "sagittal": (0, 3, 3)}
oriented = st.tuples(
    st.sampled_from(ORIENTATIONS), st.floats(-20, 20), st.tuples(*[st.floats(-300, 300)] * 3)
)


def marked(axes, signs):
    """An array in which only the marked voxel is bright."""
    shape, _ = grid(axes, signs)
    array = noise(shape)
    place = [
        MARK[w] if s > 0 else shape[a] - 1 - MARK[w]
        for a, (w, s) in enumerate(zip(axes, signs, strict=True))
    ]
    array[tuple(place)] = 5000
    return array


def refused(path, *words, **options):
    with pytest.raises(BadFile) as caught:
        read_volume(path, **options)
    return check_words(caught.value, words)


def refused_mask(path, image, *words, **options):
    volume = read_volume(image)
    with pytest.raises(BadFile) as caught:
        read_mask_volume(path, image, volume, **options)
    return check_words(caught.value, words)


def check_words(bad, words):
    text = " | ".join((bad.what, bad.detail, bad.cure))
    assert bad.what
    assert bad.cure
    for word in words:
        assert word in text, text
    return text


# --- what one sees ------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_the_marked_voxel_is_where_it_must_be(view):
    for axes, signs in ORIENTATIONS:
        for turn in (0, 20):
            _, affine = grid(axes, signs, turn)
            stack = planes(marked(axes, signs), affine, view)
            assert stack[SEEN[view]] == 5000, (axes, signs, turn)


@pytest.mark.parametrize("write", [write_nifti, write_itk, write_series])
def test_the_same_in_every_format_and_orientation(tmp_path, write):
    names = {write_nifti: "v.nii", write_itk: "v.mha", write_series: "series"}
    for number, (axes, signs) in enumerate(ORIENTATIONS):
        _, affine = grid(axes, signs, turn=10)
        path = write(tmp_path / str(number) / names[write], marked(axes, signs), affine)
        volume = read_volume(path)
        for view in VIEWS:
            stack = planes(volume.array, volume.affine, view)
            assert stack[SEEN[view]] == 5000, (axes, signs, view)
        place = np.argwhere(volume.array == 5000)[0]
        world = volume.affine @ [*place, 1]
        expected = grid(turn=10)[1] @ [*MARK, 1]
        np.testing.assert_allclose(world, expected, atol=1e-5)


@given(oriented, st.sampled_from(VIEWS), st.booleans())
@settings(deadline=None)
def test_planes_and_back_is_the_same_array(orientation, view, colour):
    (axes, signs), turn, corner = orientation
    shape, affine = grid(axes, signs, turn, corner)
    array = noise((*shape, 3) if colour else shape)
    stack = planes(array, affine, view)
    np.testing.assert_array_equal(from_planes(stack, affine, view), array)


def test_plane_spacing_goes_with_the_axes():
    for axes, signs in ORIENTATIONS:
        shape, affine = grid(axes, signs)
        volume = Volume(noise(shape), affine)
        assert plane_spacing(volume, "axial") == (1.25, 0.5)
        assert plane_spacing(volume, "coronal") == (3.0, 0.5)
        assert plane_spacing(volume, "sagittal") == (3.0, 1.25)
        assert planes(volume.array, affine, "axial").shape == (6, 5, 4)
        assert planes(volume.array, affine, "coronal").shape == (5, 6, 4)
        assert planes(volume.array, affine, "sagittal").shape == (4, 6, 5)


# --- writing and reading ------------------------------------------------------------------------


@given(oriented, st.sampled_from([".nii", ".nii.gz", ".mha", ".mhd", ".nrrd"]))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_written_and_read_again(tmp_path, orientation, suffix):
    (axes, signs), turn, corner = orientation
    shape, affine = grid(axes, signs, turn, corner)
    if "nii" in suffix:  # the header's precision: what comes from a NIfTI file goes back exactly
        affine = affine.astype(np.float32).astype(np.float64)
    path = tmp_path / f"v{suffix}"
    write_volume(path, Volume(noise(shape), affine))
    again = read_volume(path)
    np.testing.assert_array_equal(again.array, noise(shape))
    if "nii" in suffix:
        np.testing.assert_array_equal(again.affine, affine)
    np.testing.assert_allclose(again.affine, affine, rtol=0, atol=1e-6)


@pytest.mark.parametrize("suffix", [".nii.gz", ".mha", ".nrrd"])
def test_a_sheared_affine_survives(tmp_path, suffix):
    shape, affine = grid(turn=8)
    affine[:3, 2] += 0.25 * affine[:3, 1]
    write_volume(tmp_path / f"v{suffix}", Volume(noise(shape), affine))
    again = read_volume(tmp_path / f"v{suffix}")
    np.testing.assert_allclose(again.affine, affine, atol=1e-5)
    if "nii" in suffix:  # a quaternion cannot say it, so it must not say anything
        assert nibabel.load(tmp_path / f"v{suffix}").header["qform_code"] == 0


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "float32", "float64"])
@pytest.mark.parametrize("suffix", [".nii.gz", ".mha", ".nrrd"])
def test_types_survive(tmp_path, dtype, suffix):
    shape, affine = grid()
    write_volume(tmp_path / f"v{suffix}", Volume((noise(shape) % 250).astype(dtype), affine))
    again = read_volume(tmp_path / f"v{suffix}")
    assert again.array.dtype == dtype
    np.testing.assert_array_equal(again.array, noise(shape) % 250)


@pytest.mark.parametrize("suffix", [".nii.gz", ".mha", ".nrrd"])
@pytest.mark.parametrize("dtype", [bool, np.int64])
def test_types_that_files_lack_keep_their_values(tmp_path, suffix, dtype):
    shape, affine = grid()
    array = (noise(shape) > 500).astype(dtype)
    write_volume(tmp_path / f"v{suffix}", Volume(array, affine))
    np.testing.assert_array_equal(read_volume(tmp_path / f"v{suffix}").array, array)


@pytest.mark.parametrize("suffix", [".nii.gz", ".mha", ".nrrd"])
def test_colour_volumes(tmp_path, suffix):
    shape, affine = grid()
    array = (noise((*shape, 3)) % 256).astype(np.uint8)
    write_volume(tmp_path / f"v{suffix}", Volume(array, affine))
    np.testing.assert_array_equal(read_volume(tmp_path / f"v{suffix}").array, array)


def test_equal_volumes_are_equal_files_whenever_they_are_written(tmp_path):
    shape, affine = grid()
    for name in ("a.nii.gz", "b.nii.gz"):
        write_volume(tmp_path / name, Volume(noise(shape), affine))
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()
    assert (tmp_path / "a.nii.gz").read_bytes()[4:8] == bytes(4)  # no time


def test_other_programs_find_the_place_by_either_form(tmp_path):
    shape, affine = grid((2, 0, 1), (1, -1, 1), turn=15)
    write_volume(tmp_path / "v.nii", Volume(noise(shape), affine))
    header = nibabel.load(tmp_path / "v.nii").header
    assert (int(header["qform_code"]), int(header["sform_code"])) == (1, 1)
    assert header.get_xyzt_units()[0] == "mm"
    np.testing.assert_allclose(header.get_qform(), affine, atol=1e-4)


@contextmanager
def full_disk(limit=20_000):
    """No file grows beyond the limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".mha", ".mhd", ".nrrd"])
def test_a_full_disk_leaves_the_old_file(tmp_path, suffix):
    shape, affine = grid()
    path = tmp_path / f"v{suffix}"
    write_volume(path, Volume(noise(shape), affine))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    large = Volume(noise((40, 40, 40)), affine)
    with full_disk(), pytest.raises(DataError, match=f"v{suffix}: cannot be written"):
        write_volume(path, large)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_an_unknown_suffix_is_not_written(tmp_path):
    shape, affine = grid()
    with pytest.raises(DataError, match=r"\.nii\.gz"):
        write_volume(tmp_path / "v.png", Volume(noise(shape), affine))


# --- reading as the format means it -------------------------------------------------------------


def write_scaled(path, stored, slope, intercept):
    """Byte by byte, because nibabel would scale the values back."""
    image = nibabel.Nifti1Image(stored, grid()[1])
    image.header.set_slope_inter(slope, intercept)
    with open(path, "wb") as file:
        image.header.write_to(file)
        file.write(bytes(352 - file.tell()) + stored.tobytes(order="F"))
    return path


@pytest.mark.parametrize(
    ("slope", "intercept", "dtype"),
    [(1, 0, "int16"), (1, -1024, "int16"), (0.5, 10, "float64"), (1, 0.5, "float64")],
)
def test_nifti_scaling(tmp_path, slope, intercept, dtype):
    stored = noise(grid()[0]).astype(np.int16)
    volume = read_volume(write_scaled(tmp_path / "v.nii", stored, slope, intercept))
    assert volume.array.dtype == dtype
    np.testing.assert_allclose(volume.array, stored * float(slope) + intercept)


def test_an_offset_that_leaves_the_type_widens_it(tmp_path):
    stored = (noise(grid()[0]) % 256).astype(np.uint8)
    volume = read_volume(write_scaled(tmp_path / "v.nii", stored, 1, -1000))
    assert volume.array.dtype.kind == "i"
    np.testing.assert_array_equal(volume.array, stored.astype(int) - 1000)


@pytest.mark.parametrize("dtype", [">i2", ">f4"])
def test_files_of_the_other_byte_order(tmp_path, dtype):
    """torch takes no others than the machine's own."""
    shape, affine = grid()
    image = nibabel.Nifti1Image(noise(shape).astype(dtype), affine)
    image = nibabel.Nifti1Image(image.dataobj, affine, image.header.as_byteswapped(">"))
    nibabel.save(image, tmp_path / "v.nii")
    assert (tmp_path / "v.nii").read_bytes()[:2] == b"\0\0"  # sizeof_hdr begins with its high byte
    volume = read_volume(tmp_path / "v.nii")
    assert volume.array.dtype.isnative
    np.testing.assert_array_equal(volume.array, noise(shape))


def test_four_axes_need_a_channel(tmp_path):
    shape, affine = grid()
    array = noise((*shape, 2))
    path = write_nifti(tmp_path / "v.nii.gz", array, affine)
    np.testing.assert_array_equal(read_volume(path, channel=1).array, array[..., 1])
    refused(path, "several volumes", "2 channels", "channel: 0", "federation.yaml")
    refused(path, "several volumes", "2 channels", channel=2)


def test_a_vector_of_floats_needs_a_channel_too(tmp_path):
    shape, affine = grid()
    array = noise((*shape, 3)).astype(np.float32)
    path = write_itk(tmp_path / "v.nrrd", array, affine)
    np.testing.assert_array_equal(read_volume(path, channel=2).array, array[..., 2])
    refused(path, "3 channels", "channel: 0")


@pytest.mark.parametrize("axes", [2, 4, 5])
def test_axes_of_length_one_do_not_count(tmp_path, axes):
    shape, affine = grid()
    array = noise((*shape, 1, 1)[:axes] if axes > 2 else shape[:2])
    volume = read_volume(write_nifti(tmp_path / "v.nii", array, affine))
    np.testing.assert_array_equal(volume.array, array.reshape((*array.shape, 1)[:3]))


def test_a_flat_metaimage_is_one_plane(tmp_path):
    import SimpleITK as sitk

    image = sitk.GetImageFromArray(noise((5, 4)))
    image.SetSpacing((0.5, 2))
    sitk.WriteImage(image, str(tmp_path / "v.mha"))
    volume = read_volume(tmp_path / "v.mha")
    assert volume.array.shape == (4, 5, 1)
    assert volume.spacing == (0.5, 2.0, 1.0)


def test_what_is_a_volume(tmp_path):
    for suffix in SUFFIXES:
        assert is_volume(tmp_path / f"v{suffix}")
        assert is_volume(tmp_path / f"V{suffix.upper()}")
    assert is_volume(tmp_path)
    assert not is_volume(tmp_path / "v.png")
    assert not is_volume(tmp_path / "v.gz")


def test_parts(tmp_path):
    shape, affine = grid()
    write_itk(tmp_path / "a.mhd", noise(shape), affine)
    write_itk(tmp_path / "b.nhdr", noise(shape), affine, compress=True)
    write_itk(tmp_path / "c.mha", noise(shape), affine)
    write_itk(tmp_path / "d.nrrd", noise(shape), affine)
    assert [p.name for p in parts_of(tmp_path / "a.mhd")] == ["a.mhd", "a.raw"]
    assert [p.name for p in parts_of(tmp_path / "b.nhdr")] == ["b.nhdr", "b.raw.gz"]
    for name in ("c.mha", "d.nrrd"):
        assert parts_of(tmp_path / name) == [tmp_path / name]
    (tmp_path / ".hidden").touch()
    (tmp_path / "folder").mkdir()
    names = [p.name for p in parts_of(tmp_path)]
    assert names == ["a.mhd", "a.raw", "b.nhdr", "b.raw.gz", "c.mha", "d.nrrd"]
    np.testing.assert_array_equal(read_volume(tmp_path / "b.nhdr").array, noise(shape))


# --- what cannot be used ------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """A volume in every format."""
    shape, affine = grid()
    array = np.tile(noise(shape), (4, 4, 4))
    for suffix in (".nii", ".nii.gz"):
        write_nifti(tmp_path / f"v{suffix}", array, affine)
    for suffix in (".mha", ".nrrd", ".mhd", ".nhdr"):
        stem = "h" if suffix == ".nhdr" else "v"
        write_itk(tmp_path / f"{stem}{suffix}", array, affine)
    write_itk(tmp_path / "packed.mha", array, affine, compress=True)
    write_itk(tmp_path / "packed.nrrd", array, affine, compress=True)
    save_dicom(tmp_path / "v.dcm", dicom_slice(array[:, :, 0], affine))
    return tmp_path


@pytest.mark.parametrize(
    "name", ["v.nii", "v.nii.gz", "v.mha", "v.nrrd", "packed.mha", "packed.nrrd"]
)
@pytest.mark.parametrize("left", [0, 0.1, 0.9])
def test_truncated_or_empty(files, name, left):
    data = (files / name).read_bytes()
    (files / name).write_bytes(data[: int(left * len(data))])
    words = "empty file" if left == 0 else "bytes"
    refused(files / name, "volume that cannot be read", words, "again")


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz", "v.mha", "v.mhd", "v.nrrd", "h.nhdr"])
@pytest.mark.parametrize("content", ["text", "v.nii", "v.nii.gz", "v.mha", "v.nrrd", "v.dcm"])
def test_not_what_its_name_says(files, name, content):
    data = b"this is no volume" if content == "text" else (files / content).read_bytes()
    (files / name).write_bytes(data)
    families = ({"v.nii"}, {"v.nii.gz"}, {"v.mha", "v.mhd"}, {"v.nrrd", "h.nhdr"})
    if any({name, content} <= family for family in families):
        read_volume(files / name)
    else:
        refused(files / name, "volume that cannot be read", "again")


def test_a_nifti_that_only_pretends_to_be_packed(files):
    os.replace(files / "v.nii", files / "v.nii.gz")
    refused(files / "v.nii.gz", "volume that cannot be read", "NIfTI")


@pytest.mark.parametrize("name", ["v.mhd", "h.nhdr"])
def test_data_file_missing_or_short(files, name):
    (data,) = (path for path in parts_of(files / name) if path.name != name)
    content = data.read_bytes()
    data.write_bytes(content[:100])
    refused(files / name, "volume that cannot be read")
    data.unlink()
    refused(files / name, "header without its data file", data.name, "is missing", "beside")


@pytest.mark.parametrize("place", ["/etc/passwd", "../outside.raw", "sub/../../outside.raw"])
@pytest.mark.parametrize("name", ["v.mhd", "v.mha", "h.nhdr", "v.nrrd"])
def test_data_file_outside_the_folder(files, name, place):
    """A header may name any file of the machine: none but those below it is opened."""
    inner = files / "inner"
    inner.mkdir()
    (files / "outside.raw").write_bytes(b"\1\2" * 100000)
    text = (files / ("v.mhd" if "m" in name else "h.nhdr")).read_text()
    text = text.replace("= v.raw", f"= {place}").replace("data file: h.raw", f"data file: {place}")
    assert place in text
    (inner / name).write_text(text)
    refused(inner / name, "outside its folder", place)
    with pytest.raises(BadFile, match="outside"):
        parts_of(inner / name)


@pytest.mark.parametrize("value", ["LIST", "v%03d.raw 1 4 1", ""])
def test_voxels_in_several_files(files, value):
    text = (files / "v.mhd").read_text().replace("= v.raw", f"= {value}")
    (files / "v.mhd").write_text(text)
    refused(files / "v.mhd", "several files", ".mha")


def test_a_file_that_is_not_there(tmp_path):
    (tmp_path / "v.nii").symlink_to("nowhere")
    refused(tmp_path / "v.nii", "cannot be opened", "No such file")
    refused(tmp_path / "v.mhd", "cannot be opened", "No such file")


@pytest.mark.parametrize("value", [0, 7])
@pytest.mark.parametrize("suffix", [".nii.gz", ".mha"])
def test_every_voxel_equal(tmp_path, value, suffix):
    shape, affine = grid()
    write_volume(tmp_path / f"v{suffix}", Volume(np.full(shape, value, np.int16), affine))
    refused(tmp_path / f"v{suffix}", "empty volume", f"every voxel {value}", "4 x 5 x 6")


def test_no_voxel_at_all(tmp_path):
    header = nibabel.Nifti1Image(noise((4, 5, 6)), np.eye(4)).header
    header["dim"][3] = 0
    with gzip.open(tmp_path / "v.nii.gz", "wb") as file:
        header.write_to(file)
    refused(tmp_path / "v.nii.gz", "empty volume")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("suffix", [".nii", ".nrrd"])
def test_voxels_that_are_no_numbers(tmp_path, value, suffix):
    shape, affine = grid()
    array = noise(shape).astype(np.float32)
    array[1, 2, 3] = array[3, 2, 1] = value
    write_volume(tmp_path / f"v{suffix}", Volume(array, affine))
    refused(tmp_path / f"v{suffix}", "no numbers", "2 of 120", "replace")


def test_complex_voxels(tmp_path):
    shape, affine = grid()
    write_nifti(tmp_path / "v.nii", noise(shape) * (1 + 1j), affine)
    refused(tmp_path / "v.nii", "complex")


def test_a_header_without_a_place(tmp_path):
    shape, affine = grid()
    write_nifti(tmp_path / "v.nii", noise(shape), affine)
    data = bytearray((tmp_path / "v.nii").read_bytes())
    data[280:296] = bytes(16)  # srow_x, which nibabel writes from the affine
    (tmp_path / "v.nii").write_bytes(data)
    refused(tmp_path / "v.nii", "no size", "spacing and orientation")


# --- masks --------------------------------------------------------------------------------------


def test_a_mask_in_any_orientation_lies_on_its_image(tmp_path):
    shape, affine = grid((2, 0, 1), (1, -1, 1), turn=12)
    image = write_nifti(tmp_path / "image.nii", noise(shape), affine)
    volume = read_volume(image)
    reference = planes(noise(shape), affine, "axial") % 3
    for number, (axes, signs) in enumerate(ORIENTATIONS):
        other = grid(axes, signs, turn=12)[1]
        stored = from_planes(reference, other, "axial").astype(np.uint8)
        write = write_itk if number % 2 else write_nifti
        path = write(tmp_path / f"m{number}{'.mha' if number % 2 else '.nii.gz'}", stored, other)
        mask = read_mask_volume(path, image, volume)
        np.testing.assert_array_equal(planes(mask, affine, "axial"), reference)


def test_rounded_headers_do_not_matter(tmp_path):
    shape, affine = grid(turn=12)
    image = write_nifti(tmp_path / "image.nii", noise(shape), affine)
    mask = write_nifti(tmp_path / "mask.nii", noise(shape) % 2, affine.round(3))
    np.testing.assert_array_equal(
        read_mask_volume(mask, image, read_volume(image)), noise(shape) % 2
    )


@pytest.mark.parametrize("shift", [0.3, 1.25, -1.25, 3.0])
def test_a_mask_that_lies_elsewhere(tmp_path, shift):
    shape, affine = grid()
    image = write_nifti(tmp_path / "image.nii", noise(shape), affine)
    moved = affine.copy()
    moved[1, 3] += shift
    path = write_nifti(tmp_path / "mask.nii", noise(shape) % 2, moved)
    refused_mask(path, image, "lies elsewhere", f"0, {shift / 1.25:g}, 0", "geometry: ignore")
    mask = read_mask_volume(path, image, read_volume(image), check_geometry=False)
    np.testing.assert_array_equal(mask, noise(shape) % 2)


def test_a_mask_of_other_voxels(tmp_path):
    shape, affine = grid()
    image = write_nifti(tmp_path / "image.nii", noise(shape), affine)
    path = write_nifti(tmp_path / "mask.nii", noise(shape) % 2, affine @ np.diag([1.5, 1, 1, 1]))
    refused_mask(path, image, "lies elsewhere", "0.75 x 1.25 x 3 mm", "0.5 x 1.25 x 3 mm")


@pytest.mark.parametrize("ignore", [False, True])
def test_a_turned_mask_that_lies_elsewhere(tmp_path, ignore):
    """Its size is right, in another order: what is wrong is the place."""
    shape, affine = grid()
    image = write_nifti(tmp_path / "image.nii", noise(shape), affine)
    other, turned = grid((1, 0, 2), (1, 1, 1), corner=(-7, 12, 23))
    path = write_nifti(tmp_path / "mask.nii", noise(other) % 2, turned)
    refused_mask(path, image, "lies elsewhere", "0, 0.8, 0", check_geometry=not ignore)


@pytest.mark.parametrize("ignore", [False, True])
def test_a_mask_of_another_shape(tmp_path, ignore):
    shape, affine = grid()
    image = write_nifti(tmp_path / "image.nii", noise(shape), affine)
    path = write_nifti(tmp_path / "mask.nii", noise((4, 5, 7)) % 2, affine)
    words = "another size", "mask 4 x 5 x 7", "image 4 x 5 x 6"
    refused_mask(path, image, *words, check_geometry=not ignore)


def test_whole_floats_are_values_and_fractions_are_not(tmp_path):
    shape, affine = grid()
    image = write_nifti(tmp_path / "image.nii", noise(shape), affine)
    values = (noise(shape) % 3).astype(np.float32)
    path = write_nifti(tmp_path / "mask.nii", values, affine)
    mask = read_mask_volume(path, image, read_volume(image))
    assert mask.dtype.kind == "i"
    np.testing.assert_array_equal(mask, values)
    for value in (0.5, np.nan):
        values[0, 0, 0] = value
        path = write_nifti(tmp_path / "mask.nii", values, affine)
        refused_mask(path, image, "fractional values", "whole numbers")


def test_a_mask_without_any_structure_is_a_mask(tmp_path):
    shape, affine = grid()
    image = write_nifti(tmp_path / "image.nii", noise(shape), affine)
    path = write_nifti(tmp_path / "mask.nii", np.zeros(shape, np.uint8), affine)
    assert not read_mask_volume(path, image, read_volume(image)).any()


def test_coloured_and_damaged_masks(tmp_path):
    shape, affine = grid()
    image = write_nifti(tmp_path / "image.nii", noise(shape), affine)
    colour = write_itk(tmp_path / "c.mha", np.ones((*shape, 3), np.uint8), affine)
    refused_mask(colour, image, "coloured")
    (tmp_path / "d.nii.gz").write_bytes(b"no")
    refused_mask(tmp_path / "d.nii.gz", image, "cannot be read")
