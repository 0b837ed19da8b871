"""Where the frames of a pipeline come from: videos, cameras, folders of pictures, topics and series."""
