"""DICOM series, frames, segmentations and mask slices, written by pydicom and highdicom."""

import io

import numpy as np
import pytest
from PIL import Image
from pydicom import Dataset, dcmread
from pydicom.encaps import encapsulate
from pydicom.uid import JPEGBaseline8Bit, RLELossless, generate_uid

from konsil.data.findings import BadFile
from konsil.data.volumes import parts_of, planes, read_mask_volume, read_volume
from tests.data.volume_files import (
    PATIENT,
    dicom_slice,
    grid,
    noise,
    save_dicom,
    write_multiframe,
    write_nifti,
    write_pictures,
    write_segmentation,
    write_series,
)

# Columns to the left, rows to the back, slices to the head: the usual axial series.
AXIAL = ((0, 1, 2), (-1, -1, 1))
SHAPE, AFFINE = grid(*AXIAL)
PIXELS = noise(SHAPE)


@pytest.fixture
def series(tmp_path):
    return write_series(tmp_path / "series", PIXELS, AFFINE)


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
    for secret in (*PATIENT, "Doe", "Jane"):
        assert secret not in text
    return text


def same(volume, array=PIXELS, affine=AFFINE):
    np.testing.assert_array_equal(volume.array, array)
    np.testing.assert_allclose(volume.affine, affine, atol=1e-6)


# --- series -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["IM{:03d}.dcm", "{}.IMA", "slice{}", "1.2.840.{}"])
def test_a_series_is_sorted_by_place_whatever_its_names(tmp_path, name):
    same(read_volume(write_series(tmp_path / "s", PIXELS, AFFINE, name=name)))


def test_axial_pictures_look_as_they_are_stored(series):
    """The usual axial series needs no flip: plane k is the k-th picture as it lies in the file."""
    volume = read_volume(series)
    stack = planes(volume.array, volume.affine, "axial")
    for k in range(6):
        np.testing.assert_array_equal(stack[k], dcmread(series / f"IM{6 - k:03d}.dcm").pixel_array)


def test_slices_from_head_to_feet_are_turned(tmp_path):
    down = AFFINE.copy()
    down[:3, 3] += 5 * AFFINE[:3, 2]
    down[:3, 2] *= -1
    same(read_volume(write_series(tmp_path / "s", PIXELS[:, :, ::-1], down)))


def test_a_tilted_gantry_gives_a_sheared_stack(tmp_path):
    tilted = AFFINE.copy()
    tilted[1, 2] = 0.8
    same(read_volume(write_series(tmp_path / "s", PIXELS, tilted)), affine=tilted)


def test_hidden_files_the_index_and_folders_are_left_alone(series):
    (series / ".DS_Store").write_bytes(b"x")
    (series / "DICOMDIR").write_bytes(b"x")
    (series / "masks").mkdir()
    same(read_volume(series))
    assert [path.name for path in parts_of(series)] == [f"IM{k:03d}.dcm" for k in range(1, 7)]


@pytest.mark.parametrize(
    ("slope", "intercept", "kind"), [("1", "-1024", "i"), ("0.5", "3", "f"), ("2", "0", "u")]
)
def test_rescaled(tmp_path, slope, intercept, kind):
    attributes = {"RescaleSlope": slope, "RescaleIntercept": intercept}
    volume = read_volume(write_series(tmp_path / "s", PIXELS, AFFINE, **attributes))
    assert volume.array.dtype.kind == kind
    np.testing.assert_allclose(volume.array, PIXELS * float(slope) + float(intercept))


def test_every_slice_has_its_own_scale(tmp_path):
    """As PET scanners write it."""

    def scale(k, data):
        data.RescaleSlope, data.RescaleIntercept = str(k + 1), "0"

    volume = read_volume(write_series(tmp_path / "s", PIXELS, AFFINE, change=scale))
    np.testing.assert_array_equal(volume.array, PIXELS * np.arange(1, 7))


def test_white_is_large_in_monochrome1_too(tmp_path):
    attributes = {"PhotometricInterpretation": "MONOCHROME1", "BitsStored": 12, "HighBit": 11}
    volume = read_volume(write_series(tmp_path / "s", PIXELS, AFFINE, **attributes))
    np.testing.assert_array_equal(volume.array, 4095 - PIXELS)


def test_signed_pixels(tmp_path):
    pixels = PIXELS.astype(np.int16) - 500
    same(read_volume(write_series(tmp_path / "s", pixels, AFFINE)), pixels)


def test_run_length_encoded(tmp_path):
    pixels = noise((16, 20, 3))
    path = write_series(
        tmp_path / "s", pixels, AFFINE, change=lambda k, data: data.compress(RLELossless)
    )
    assert dcmread(path / "IM001.dcm").file_meta.TransferSyntaxUID == RLELossless
    same(read_volume(path), pixels)


def test_jpeg_compressed_colour(tmp_path):
    """As ultrasound and fundus cameras write it: GDCM decodes it and makes it RGB."""
    pixels = np.zeros((32, 48, 3), np.uint8)
    pixels[:16] = (200, 30, 50)
    packed = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 0, 2)).save(packed, "JPEG", quality=95, subsampling=0)
    data = dicom_slice(pixels, AFFINE, PhotometricInterpretation="YBR_FULL_422")
    data.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
    data.PixelData = encapsulate([packed.getvalue()])
    data["PixelData"].is_undefined_length = True
    volume = read_volume(save_dicom(tmp_path / "us.dcm", data))
    assert volume.array.shape == (32, 48, 1, 3)
    np.testing.assert_allclose(volume.array[:, :, 0], pixels, atol=6)


# --- single files -------------------------------------------------------------------------------


def test_a_file_of_one_plane(tmp_path):
    path = save_dicom(tmp_path / "xray.dcm", dicom_slice(PIXELS[:, :, 0], AFFINE))
    same(read_volume(path), PIXELS[:, :, :1])


def test_a_picture_without_a_place_looks_as_it_is_stored(tmp_path):
    data = dicom_slice(PIXELS[:, :, 0], None, ImagerPixelSpacing=[0.2, 0.1])
    volume = read_volume(save_dicom(tmp_path / "xray.dcm", data))
    assert volume.spacing == (0.1, 0.2, 1.0)
    stack = planes(volume.array, volume.affine, "axial")
    np.testing.assert_array_equal(stack[0], PIXELS[:, :, 0].T)


def test_a_colour_file(tmp_path):
    pixels = (noise((7, 5, 3)) % 256).astype(np.uint8)
    volume = read_volume(save_dicom(tmp_path / "photo.dcm", dicom_slice(pixels, None)))
    np.testing.assert_array_equal(volume.array, pixels[:, :, None])


def test_frames_are_sorted_by_their_places(tmp_path):
    same(read_volume(write_multiframe(tmp_path / "m.dcm", PIXELS, AFFINE, [3, 0, 5, 1, 4, 2])))


def test_frames_without_places_are_a_stack(tmp_path):
    data = dicom_slice(PIXELS, None, SpacingBetweenSlices="2.5", PixelSpacing=[3, 4])
    volume = read_volume(save_dicom(tmp_path / "cine.dcm", data))
    np.testing.assert_array_equal(volume.array, PIXELS)
    assert volume.spacing == (4.0, 3.0, 2.5)


def test_frames_with_the_place_of_the_first(tmp_path):
    same(read_volume(save_dicom(tmp_path / "m.dcm", dicom_slice(PIXELS, AFFINE))))


# --- what cannot be used ------------------------------------------------------------------------


def test_missing_slice(series):
    (series / "IM003.dcm").unlink()
    refused(series, "missing slice", "6 mm between IM004.dcm and IM002.dcm", "elsewhere 3 mm")


def test_missing_slice_of_very_few(tmp_path):
    path = write_series(tmp_path / "s", PIXELS[:, :, :4], AFFINE)
    (path / "IM002.dcm").unlink()
    refused(path, "missing slice", "6 mm between IM003.dcm and IM001.dcm")


def test_missing_frame(tmp_path):
    path = write_multiframe(tmp_path / "m.dcm", PIXELS, AFFINE, [0, 1, 3, 4])
    refused(path, "missing slice", "m.dcm frame 2 and m.dcm frame 3")


def test_several_slices_at_one_position(series):
    data = dcmread(series / "IM002.dcm")
    data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    save_dicom(series / "later.dcm", data)
    refused(series, "several DICOM slices at one position", "IM002.dcm and later.dcm", "b-values")


def test_mixed_series(series):
    write_series(series, noise((8, 8, 2)), AFFINE, "localizer", name="L{}.dcm")
    words = "T2 axial: 6 files", "localizer: 2 files", "series: REGEX", "move"
    refused(series, "several DICOM series", *words)
    same(read_volume(series, series="^T2"))
    refused(series, "no DICOM series", "localizer: 2 files", series="ADC")
    refused(series, "several DICOM series", "localizer: 2 files", series="a")


def test_twice_the_same_description_is_still_two_series(series):
    write_series(series, noise(SHAPE), AFFINE, name="again{}.dcm")
    refused(series, "several DICOM series", "T2 axial: 6 files; T2 axial: 6 files", series="T2")


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"PixelSpacing": [1, 1]}, "spacing 1 x 1 and 1.25 x 0.5 mm"),
        ({"ImageOrientationPatient": [1, 0, 0, 0, 0, -1]}, "another orientation"),
        ({"Rows": 4, "PixelData": bytes(32)}, "4 x 4 and 4 x 5 pixels"),
    ],
)
def test_slices_that_are_not_alike(series, attributes, words):
    data = dcmread(series / "IM002.dcm")
    for name, value in attributes.items():
        setattr(data, name, value)
    save_dicom(series / "IM002.dcm", data)
    refused(series, "not alike", words, "IM002.dcm and IM001.dcm")


def test_colour_among_grey_slices(series):
    data = dcmread(series / "IM002.dcm")
    colour = dicom_slice(np.zeros((4, 5, 3), np.uint8), None)
    for name in ("SeriesInstanceUID", "ImagePositionPatient", "ImageOrientationPatient"):
        setattr(colour, name, data[name].value)
    colour.PixelSpacing = data.PixelSpacing
    save_dicom(series / "IM002.dcm", colour)
    refused(series, "not alike", "colour and grey", "IM002.dcm")


def test_shifted_slices(series):
    data = dcmread(series / "IM003.dcm")
    x, y, z = data.ImagePositionPatient
    data.ImagePositionPatient = [x + 2, y, z]
    save_dicom(series / "IM003.dcm", data)
    refused(series, "shifted", "IM003.dcm")


def test_slices_without_a_position(series):
    data = dcmread(series / "IM003.dcm")
    del data.ImagePositionPatient
    save_dicom(series / "IM003.dcm", data)
    refused(series, "do not say where they lie", "IM003.dcm")


@pytest.mark.parametrize("name", ["Thumbs.db", "mask.png", "notes.txt", "empty.dcm"])
def test_a_file_that_is_no_dicom_image(series, name):
    (series / name).write_bytes(b"" if "empty" in name else b"something else" * 20)
    refused(series, "no DICOM image", name, "take it away")


def test_a_dicom_file_without_pixels(series):
    data = dcmread(series / "IM001.dcm")
    del data.PixelData, data.Rows, data.Columns
    save_dicom(series / "report.dcm", data)
    refused(series, "no DICOM image", "report.dcm")


@pytest.mark.parametrize("left", [0, 0.1, 0.5, 0.95])
def test_truncated_slice(tmp_path, left):
    path = write_series(tmp_path / "s", noise((32, 32, 3)), AFFINE)
    content = (path / "IM002.dcm").read_bytes()
    (path / "IM002.dcm").write_bytes(content[: int(left * len(content))])
    refused(path, "IM002.dcm")


@pytest.mark.parametrize("content", [b"", b"this is no DICOM file" * 50])
def test_a_single_file_that_is_not_what_its_name_says(tmp_path, content):
    (tmp_path / "v.dcm").write_bytes(content)
    refused(tmp_path / "v.dcm", "cannot be read", "DICOM" if content else "empty file")


def test_an_empty_folder(tmp_path):
    (tmp_path / ".hidden").touch()
    refused(tmp_path, "folder without a DICOM file")


def test_an_empty_volume(tmp_path):
    path = write_series(tmp_path / "s", np.zeros(SHAPE, np.uint16), AFFINE)
    refused(path, "empty volume", "every voxel 0")


@pytest.mark.parametrize("content", [b"1,25\\0,50 ", b"one\\two "])
def test_a_header_with_numbers_that_are_none(series, content):
    data = (series / "IM002.dcm").read_bytes()
    assert data.count(b"1.25\\0.5") == 1
    (series / "IM002.dcm").write_bytes(data.replace(b"1.25\\0.5", content[:8]))
    refused(series, "cannot be read", "IM002.dcm")


def test_frames_of_different_scale(tmp_path):
    path = write_multiframe(tmp_path / "m.dcm", PIXELS, AFFINE)
    data = dcmread(path)
    for k, frame in enumerate(data.PerFrameFunctionalGroupsSequence):
        scale = Dataset()
        scale.RescaleSlope, scale.RescaleIntercept = str(k + 1), "0"
        frame.PixelValueTransformationSequence = [scale]
    save_dicom(path, data)
    refused(path, "different rescale slopes", "m.dcm")


def test_a_segmentation_is_no_image(series, tmp_path):
    path = write_segmentation(tmp_path / "seg.dcm", series, {1: PIXELS > 500})
    refused(path, "no DICOM image", "seg.dcm")


# --- DICOM SEG ----------------------------------------------------------------------------------


def read_mask(path, image, **options):
    return read_mask_volume(path, image, read_volume(image), **options)


def test_a_segmentation_without_its_empty_slices(series, tmp_path):
    left, right = np.zeros(SHAPE, bool), np.zeros(SHAPE, bool)
    left[:2, :, 1] = left[:2, :, 4] = True  # slices 2 and 3 between are left out
    right[3, 1:3, 4] = True
    path = write_segmentation(tmp_path / "seg.dcm", series, {1: left, 2: right})
    assert dcmread(path).NumberOfFrames == 3
    np.testing.assert_array_equal(read_mask(path, series), left + 2 * right)
    (tmp_path / "folder").mkdir()
    path.rename(tmp_path / "folder/seg.dcm")
    np.testing.assert_array_equal(read_mask(tmp_path / "folder", series), left + 2 * right)


@pytest.mark.parametrize(("disc_number", "cup_number"), [(1, 2), (2, 1)])
def test_a_disc_that_includes_the_cup(series, tmp_path, disc_number, cup_number):
    disc, cup = np.zeros(SHAPE, bool), np.zeros(SHAPE, bool)
    disc[:3, :, 1:3] = True
    cup[1, 1:3, 2] = True
    path = write_segmentation(tmp_path / "seg.dcm", series, {disc_number: disc, cup_number: cup})
    mask = read_mask(path, series)
    np.testing.assert_array_equal(mask == cup_number, cup)
    np.testing.assert_array_equal(np.isin(mask, (disc_number, cup_number)), disc)


@pytest.mark.parametrize(("columns", "shared"), [((1, 3), 6), ((2, 4), 3), ((2, 3), 3)])
def test_other_overlaps_are_refused(series, tmp_path, columns, shared):
    """Also two equal segments: one of them would vanish."""
    one, two = np.zeros(SHAPE, bool), np.zeros(SHAPE, bool)
    one[1:3, 1:4, 2] = True
    two[slice(*columns), 1:4, 2] = True
    two[3, 3, 3] = columns == (2, 3)  # smaller than the other, and not inside it
    path = write_segmentation(tmp_path / "seg.dcm", series, {1: one, 2: two})
    refused_mask(path, series, "overlap", f"segments 1 and 2 share {shared} voxels", "of its own")


@pytest.mark.parametrize("kind", ["LABELMAP", "FRACTIONAL"])
def test_other_kinds_of_segmentations(series, tmp_path, kind):
    left, right = PIXELS < 300, PIXELS > 600
    path = write_segmentation(tmp_path / "seg.dcm", series, {1: left, 2: right}, kind)
    assert dcmread(path).SegmentationType == kind
    np.testing.assert_array_equal(read_mask(path, series), left + 2 * right)


def test_a_fractional_segmentation(series, tmp_path):
    half = (PIXELS > 600) * 0.5
    path = write_segmentation(tmp_path / "seg.dcm", series, {1: half}, "FRACTIONAL")
    refused_mask(path, series, "fractional values", "binary")


def test_a_segmentation_on_an_image_stored_otherwise(series, tmp_path):
    """The image as NIfTI in another orientation: the place in space decides."""
    path = write_segmentation(tmp_path / "seg.dcm", series, {1: PIXELS > 500})
    shape, affine = grid((2, 0, 1), (1, 1, -1))
    turned = np.zeros(shape, np.uint16)
    for i, j, k in np.ndindex(SHAPE):
        place = np.linalg.solve(affine, AFFINE @ [i, j, k, 1])[:3]
        turned[tuple(np.rint(place).astype(int))] = PIXELS[i, j, k]
    image = write_nifti(tmp_path / "image.nii.gz", turned, affine)
    np.testing.assert_array_equal(read_mask(path, image), turned > 500)


def test_a_segmentation_of_another_series(series, tmp_path):
    """Even where it would fit: ADC and T2 of one examination are not the same picture."""
    other = write_series(tmp_path / "other", PIXELS, AFFINE, "ADC")
    path = write_segmentation(tmp_path / "seg.dcm", other, {1: PIXELS > 500})
    refused_mask(path, series, "another series", "geometry: ignore")
    mask = read_mask(path, series, check_geometry=False)
    np.testing.assert_array_equal(mask, PIXELS > 500)


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize(
    ("shift", "place"),
    [((0, 0, 1), "0, 0, 5.333"), ((0.5, 0, 0), "-1, 0, 5"), ((0, 0, -18), "0, 0, -1")],
)
def test_a_segmentation_that_lies_elsewhere(series, tmp_path, ignore, shift, place):
    """Not between the image's slices, nor partly or wholly outside of it."""
    moved = AFFINE.copy()
    moved[:3, 3] += shift
    uid = dcmread(series / "IM001.dcm").SeriesInstanceUID
    other = write_series(tmp_path / "other", PIXELS, moved, SeriesInstanceUID=uid)
    path = write_segmentation(tmp_path / "seg.dcm", other, {1: PIXELS > 500})
    refused_mask(path, series, "lies elsewhere", f"voxel {place} of", check_geometry=not ignore)


def test_two_segmentations_in_a_folder(series, tmp_path):
    for name in ("a.dcm", "b.dcm"):
        write_segmentation(tmp_path / "masks" / name, series, {1: PIXELS > 500})
    refused_mask(tmp_path / "masks", series, "beside other files", "a.dcm, b.dcm")


def test_the_pattern_of_the_series_counts_for_its_segmentation(series, tmp_path):
    path = write_segmentation(tmp_path / "seg.dcm", series, {1: PIXELS > 500})
    write_series(series, noise((8, 8, 2)), AFFINE, "localizer", name="L{}.dcm")
    mask = read_mask_volume(path, series, read_volume(series, series="T2"), series="T2")
    np.testing.assert_array_equal(mask, PIXELS > 500)


@pytest.mark.parametrize("left", [0.5, 0.97])
def test_a_truncated_segmentation(series, tmp_path, left):
    path = write_segmentation(tmp_path / "seg.dcm", series, {1: PIXELS > 500})
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content))])
    refused_mask(path, series, "cannot be read")


# --- mask slices --------------------------------------------------------------------------------


def test_a_series_of_mask_slices(series, tmp_path):
    """As I2CVB stores them; also from head to feet, and only where there is something."""
    mask = (PIXELS > 500).astype(np.uint8) * 255
    whole = write_series(tmp_path / "whole", mask, AFFINE)
    np.testing.assert_array_equal(read_mask(whole, series), mask)
    (whole / "IM003.dcm").unlink()  # slice 3
    mask[:, :, 3] = 0
    np.testing.assert_array_equal(read_mask(whole, series), mask)


def test_one_mask_slice_for_one_plane(tmp_path):
    image = save_dicom(tmp_path / "image.dcm", dicom_slice(PIXELS[:, :, 0], AFFINE))
    mask = save_dicom(tmp_path / "mask.dcm", dicom_slice(PIXELS[:, :, 0] % 2, AFFINE))
    np.testing.assert_array_equal(read_mask(mask, image), PIXELS[:, :, :1] % 2)


def test_mask_slices_that_lie_elsewhere(series, tmp_path):
    moved = AFFINE.copy()
    moved[0, 3] += 0.25
    path = write_series(tmp_path / "masks", PIXELS % 2, moved)
    refused_mask(path, series, "lies elsewhere", "IM006.dcm", "geometry: ignore")
    np.testing.assert_array_equal(read_mask(path, series, check_geometry=False), PIXELS % 2)


def test_mask_slices_of_another_shape(series, tmp_path):
    path = write_series(tmp_path / "masks", noise((8, 8, 6)) % 2, AFFINE)
    refused_mask(path, series, "another size", "mask 8 x 8 x 6", "image 4 x 5 x 6")
    path = write_series(tmp_path / "more", noise((4, 5, 7)) % 2, AFFINE)
    refused_mask(path, series, "lies elsewhere", "IM001.dcm")


def test_mask_slices_of_larger_pixels(series, tmp_path):
    """They would fit into the image, on every other pixel."""
    coarse = AFFINE @ np.diag([2, 2, 1, 1])
    path = write_series(tmp_path / "masks", noise((2, 2, 6)) % 2, coarse)
    refused_mask(path, series, "another size", "mask 2 x 2 x 6")


def test_pictures_named_like_the_slices(series, tmp_path):
    mask = (PIXELS % 3).astype(np.uint8)
    path = write_pictures(tmp_path / "masks", mask, lambda k: f"IM{6 - k:03d}.png")
    np.testing.assert_array_equal(read_mask(path, series), mask)


def test_pictures_numbered_like_the_instances(series, tmp_path):
    mask = (PIXELS % 3).astype(np.uint8)
    path = write_pictures(tmp_path / "masks", mask, lambda k: f"p7_liver_{k + 1:04d}.png")
    np.testing.assert_array_equal(read_mask(path, series), mask)


@pytest.mark.parametrize("name", ["p7_{0}.png", "IM{0:03d}x2.png", "mask.png"])
def test_pictures_that_do_not_pair(series, tmp_path, name):
    """Numbered from 0, all with the same last number, or a single one."""
    path = write_pictures(tmp_path / "masks", PIXELS % 2, lambda k: name.format(k))
    refused_mask(path, series, "do not pair", "6 slices", "InstanceNumber")


def test_a_picture_for_an_image_without_a_place(tmp_path):
    save_dicom(tmp_path / "image/xray.dcm", dicom_slice(PIXELS[:, :, 0], None))
    path = write_pictures(tmp_path / "masks", PIXELS[:, :, :1] % 2, lambda k: "xray.png")
    np.testing.assert_array_equal(read_mask(path, tmp_path / "image"), PIXELS[:, :, :1] % 2)


def test_mask_frames_without_places_need_trust(series, tmp_path):
    path = save_dicom(tmp_path / "mask.dcm", dicom_slice(PIXELS % 2, None))
    refused_mask(path, series, "lies elsewhere", "geometry: ignore")
    np.testing.assert_array_equal(read_mask(path, series, check_geometry=False), PIXELS % 2)


def test_coloured_pictures(series, tmp_path):
    path = write_pictures(tmp_path / "masks", PIXELS % 2, lambda k: f"{k + 1}.png")
    red = np.zeros((5, 4, 3), np.uint8)
    red[2, 1] = (255, 128, 0)
    Image.fromarray(red).save(path / "3.png")
    refused_mask(path, series, "coloured mask", "3.png")
    mask = read_mask(path, series, colours=True)
    assert np.argwhere(mask == 0xFF8000).tolist() == [[1, 2, 2]]


def test_two_pictures_for_every_slice(series, tmp_path):
    path = write_pictures(tmp_path / "masks", PIXELS % 2, lambda k: f"disc_{k + 1}.png")
    write_pictures(path, PIXELS % 2, lambda k: f"cup_{k + 1}.png")
    refused_mask(path, series, "do not pair", "12 PNG, 6 slices")


def test_a_missing_picture(series, tmp_path):
    path = write_pictures(tmp_path / "masks", PIXELS % 2, lambda k: f"{k + 1}.png")
    (path / "4.png").unlink()
    refused_mask(path, series, "do not pair", "5 PNG, 6 slices", "empty ones too")


def test_pictures_of_another_size_or_for_another_kind_of_image(series, tmp_path):
    path = write_pictures(tmp_path / "masks", noise((5, 5, 6)) % 2, lambda k: f"{k + 1}.png")
    refused_mask(path, series, "another size", "mask 5 x 5 x 6", "image 4 x 5 x 6")
    image = write_nifti(tmp_path / "image.nii", PIXELS, AFFINE)
    refused_mask(path, image, "no DICOM series", "image.nii", "NIfTI")


def test_nifti_masks_of_a_series(series, tmp_path):
    """dcm2niix stores rows the other way round: the mask is turned onto the series."""
    affine = AFFINE.copy()
    affine[:3, 3] += 4 * AFFINE[:3, 1]
    affine[:3, 1] *= -1
    path = write_nifti(tmp_path / "mask.nii.gz", PIXELS[:, ::-1] % 2, affine)
    np.testing.assert_array_equal(read_mask(path, series), PIXELS % 2)
